POOT_KERNEL(128, POOT_TOGETHER, 16)
row_sum_62d78b73e5e694ce(f32 *p0, f32 *p1, const u32 n0, const u32 n1)
{
    POOT_SHARED(f32, s0, 2, 0);
    const i32 group0 = poot_group<0>();
    const i32 thread = poot_thread();
    const u32 last0_1 = poot_last(n0, 1u);
    const i32 lane = thread & 63;
    const i32 wave = thread / 64;
    const i32 v0 = (i32)((u32)group0 << (7 & 31));
    const i32 v1 = v0 + thread;
    const f32 v2 = *(poot_at(p0, poot_near(v1, last0_1)));
    const f32 v3 = poot_reduce<poot_add, 64>((f32)v2);
    const bool v4 = lane == 0;
    if (v4) {
        if ((u32)wave < 2u) *(s0 + wave) = v3;
    }
    poot_barrier();
    const f32 v5 = *(s0 + 0);
    const f32 v6 = *(s0 + 1);
    const f32 v7 = v5 + v6;
    if ((u32)group0 < n1) *(poot_at(p1, (u32)group0)) = v7;
}
