// tile_max
@group(0) @binding(0) var<storage, read> b0_x: array<i32>;
@group(0) @binding(1) var<storage, read_write> b1_best: array<atomic<i32>>;
@group(0) @binding(2) var<storage, read_write> fault: array<atomic<u32>>;
var<workgroup> s0_tile: array<i32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let v0 = i32(thread);
    let v1 = i32(group.x);
    let v2 = v1 * 64i;
    let v3 = v2 + v0;
    let v4 = i32(arrayLength(&b0_x));
    let v5 = v3 < v4;
    if (!v5) {
        atomicMax(&fault[0], 2568595715u);
    }
    let v6 = i32(arrayLength(&b0_x));
    let v7 = v6 - 1i;
    let v8 = min(v3, v7);
    let v9 = b0_x[v8];
    let v10 = subgroupBroadcast(v0, 0u);
    let v11 = max(v9, v10);
    s0_tile[v0] = v11;
    var v12: i32 = 32i;
    loop {
        let v13 = v12;
        let v14 = v13 > 0i;
        if (!v14) { break; }
        workgroupBarrier();
        storageBarrier();
        let v16 = v0 < v13;
        if (v16) {
            let v17 = s0_tile[v0];
            let v18 = v0 + v13;
            let v19 = s0_tile[v18];
            let v20 = max(v17, v19);
            s0_tile[v0] = v20;
        }
        let v21 = v13 / 2i;
        v12 = v21;
    }
    let v22 = v0 == 0i;
    if (v22) {
        let v23 = s0_tile[0i];
        let v24 = atomicMax(&b1_best[0i], v23);
    }
}
