// silu
@group(0) @binding(0) var<storage, read> b0_x: array<u32>;
@group(0) @binding(1) var<storage, read_write> b1_y: array<f32>;

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
    let v12 = max(v11, (-104.0f));
    let v13 = min(v12, 89.0f);
    let v14 = v13 * 1.442695f;
    let v15 = round(v14);
    let v16 = v15 * 0.6933594f;
    let v17 = v13 - v16;
    let v18 = v15 * (-2.1219444e-04f);
    let v19 = v17 - v18;
    let v20 = fma(0.00139506f, v19, 0.008368954f);
    let v21 = fma(v20, v19, 0.041666206f);
    let v22 = fma(v21, v19, 0.16666518f);
    let v23 = fma(v22, v19, 0.5f);
    let v24 = v19 * v19;
    let v25 = fma(v24, v23, v19);
    let v26 = v25 + 1.0f;
    let v27 = i32(v15);
    let v28 = v27 >> 1u;
    let v29 = v28 + 127i;
    let v30 = v29 << 23u;
    let v31 = bitcast<f32>(v30);
    let v32 = v26 * v31;
    let v33 = v27 - v28;
    let v34 = v33 + 127i;
    let v35 = v34 << 23u;
    let v36 = bitcast<f32>(v35);
    let v37 = v32 * v36;
    let v38 = bitcast<u32>(v11);
    let v39 = v38 & 2147483647u;
    let v40 = v39 > 2139095040u;
    let v41 = select(v37, v11, v40);
    let v42 = v41 + 1.0f;
    let v43 = v10 / v42;
    b1_y[v3] = v43;
}
