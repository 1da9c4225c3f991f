// scaled_sum
@group(0) @binding(0) var<storage, read> b0_x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> b1_y: array<f32>;

@compute @workgroup_size(32)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let v0 = i32(group.x);
    let v1 = v0 * 32i;
    let v2 = i32(thread);
    let v3 = v1 + v2;
    var v4: f32 = 0.0f;
    for (var v5: i32 = 0i; v5 < 16i; v5 += 1i) {
        let v6 = v4;
        let v7 = v3 * 16i;
        let v8 = v7 + v5;
        let v9 = v8 * 4i;
        let v10 = b0_x[v9 >> 2u];
        let v11 = v10.x;
        let v12 = v10.y;
        let v13 = v11 + v12;
        let v14 = v6 + v13;
        let v15 = v10.z;
        let v16 = v10.w;
        let v17 = v15 + v16;
        let v18 = v14 + v17;
        v4 = v18;
    }
    let v19 = i32(arrayLength(&b1_y));
    let v20 = v3 < v19;
    if (v20) {
        let v21 = v4 * 0.1f;
        b1_y[v3] = v21;
    }
}
