POOT_KERNEL(64, POOT_TOGETHER, 256)
tile_max_9919a958057707f0(const i32 *__restrict__ p0, i32 *p1, u32 *fault, const u32 n0, const u32 n1)
{
    POOT_SHARED(i32, s0, 64, 0);
    const i32 thread = poot_thread();
    const i32 group0 = poot_group<0>();
    const u32 last0_1 = poot_last(n0, 1u);
    const i32 v0 = group0 * 64;
    const i32 v1 = v0 + thread;
    const i32 v2 = (i32)n0;
    const bool v3 = v1 < v2;
    if (!v3) poot_fail(fault, 0x9919a903u);
    const i32 v4 = (i32)n0;
    const i32 v5 = v4 - 1;
    const i32 v6 = poot_min::of(v1, v5);
    const i32 v7 = *(poot_at(p0, poot_near(v6, last0_1)));
    const i32 v8 = poot_broadcast((i32)thread, 0);
    const i32 v9 = poot_max::of(v7, v8);
    *(s0 + thread) = v9;
    i32 v10;
    v10 = 32;
    for (;;) {
        POOT_ROUND()
        const bool v11 = v10 > 0;
        if (!v11) break;
        poot_barrier();
        const bool v12 = thread < v10;
        if (v12) {
            const i32 v13 = *(s0 + thread);
            const i32 v14 = thread + v10;
            const i32 v15 = *(s0 + poot_near(v14, 63u));
            const i32 v16 = poot_max::of(v13, v15);
            *(s0 + thread) = v16;
        }
        const i32 v17 = v10 / 2;
        v10 = v17;
    }
    const bool v18 = thread == 0;
    if (v18) {
        const i32 v19 = *(s0 + 0);
        if ((u32)0 < n1) poot_atomic_max(poot_at(p1, (u32)0), (i32)v19);
    }
}
