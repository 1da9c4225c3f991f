// sweep
@group(0) @binding(0) var<storage, read> b0_pos: array<i32>;
@group(0) @binding(1) var<storage, read_write> b1_y: array<i32>;
@group(0) @binding(2) var<storage, read_write> fault: array<atomic<u32>>;

@compute @workgroup_size(8)
fn main(@builtin(local_invocation_index) thread: u32) {
    var cut_short: bool = false;
    let v0 = b0_pos[0i];
    var v1: i32 = 0i;
    var v2: i32 = 0i;
    for (; v2 < v0; v2 += 1i) {
        let v3 = v1;
        let v4 = v3 + 1i;
        v1 = v4;
    }
    cut_short = cut_short || v2 < v0;
    let v5 = i32(thread);
    b1_y[v5] = v1;
    if (cut_short) {
        atomicMax(&fault[0], 1113822464u);
    }
}
