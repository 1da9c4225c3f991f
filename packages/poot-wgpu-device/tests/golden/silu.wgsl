// silu
@group(0) @binding(0) var<storage, read> b0_x: array<u32>;
@group(0) @binding(1) var<storage, read_write> b1_y: array<f32>;

fn poot_is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn poot_scale(x: f32, n: i32) -> f32 {
    let half = n >> 1u;
    return x * bitcast<f32>((half + 127) << 23u) * bitcast<f32>((n - half + 127) << 23u);
}

fn poot_exp(x: f32) -> f32 {
    let y = clamp(x, -104.0f, 89.0f);
    let n = round(y * 1.442695f);
    let r = (y - n * 0.693359375f) - n * -0.00021219444f;
    let p = fma(fma(fma(fma(0.00139506f, r, 0.008368954f), r, 0.041666206f), r, 0.16666518f), r, 0.5f);
    let value = poot_scale(1.0f + fma(r * r, p, r), i32(n));
    return select(value, x, poot_is_nan(x));
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let v0 = i32(group.x);
    let v1 = v0 * 64i;
    let v2 = i32(thread);
    let v3 = v1 + v2;
    let v4 = v3 / 2i;
    let v5 = b0_x[v4];
    let v6 = v3 % 2i;
    let v7 = u32(v6);
    let v8 = v7 * 16u;
    let v9 = v5 >> (v8 & 31u);
    let v10 = unpack2x16float(v9).x;
    let v11 = -v10;
    let v12 = poot_exp(v11);
    let v13 = v12 + 1.0f;
    let v14 = v10 / v13;
    b1_y[v3] = v14;
}
