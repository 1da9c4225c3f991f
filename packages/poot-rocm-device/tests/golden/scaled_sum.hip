POOT_KERNEL(32, POOT_APART, 0)
scaled_sum_7de89e0cb50e04c5(const f32 *__restrict__ p0, f32 *p1, const u32 n0, const u32 n1)
{
    const i32 group0 = poot_group<0>();
    const i32 thread = poot_thread();
    const u32 last0_4 = poot_last(n0, 4u);
    const i32 v0 = group0 * 32;
    const i32 v1 = v0 + thread;
    f32 v2;
    v2 = 0x0p+0f;
    for (i32 v3 = 0; v3 < 16; v3 += 1) {
        const i32 v4 = v1 * 16;
        const i32 v5 = v4 + v3;
        const i32 v6 = v5 * 4;
        const f32x4 v7 = *(const f32x4 *)(poot_at(p0, poot_near(v6, last0_4)));
        const f32 v8 = v7.x + v7.y;
        const f32 v9 = v2 + v8;
        const f32 v10 = v7.z + v7.w;
        const f32 v11 = v9 + v10;
        v2 = v11;
    }
    const i32 v12 = (i32)n1;
    const bool v13 = v1 < v12;
    if (v13) {
        const f32 v14 = v2 * 0x1.99999ap-4f;
        if ((u32)v1 < n1) *(poot_at(p1, (u32)v1)) = v14;
    }
}
