POOT_INLINE f32 poot_exp(f32 a) {
    const f32 t0 = poot_max::of(a, (-0x1.ap+6f));
    const f32 t1 = poot_min::of(t0, 0x1.64p+6f);
    const f32 t2 = __builtin_fmaf(t1, 0x1.715476p+0f, 0x1.8p+23f);
    const f32 t3 = t2 - 0x1.8p+23f;
    const i32 t4 = poot_bits<i32>(t2);
    const f32 t5 = __builtin_fmaf(t3, (-0x1.62e43p-1f), t1);
    const f32 t6 = __builtin_fmaf(t3, 0x1.05c61p-29f, t5);
    const f32 t7 = t6 * t6;
    const f32 t8 = __builtin_fmaf(0x1.9e08c2p-13f, t6, 0x1.6d5278p-10f);
    const f32 t9 = __builtin_fmaf(t8, t6, 0x1.11130cp-7f);
    const f32 t10 = __builtin_fmaf(t9, t6, 0x1.5554e4p-5f);
    const f32 t11 = __builtin_fmaf(t10, t6, 0x1.555554p-3f);
    const f32 t12 = __builtin_fmaf(t11, t6, 0x1p-1f);
    const f32 t13 = __builtin_fmaf(t7, t12, t6);
    const i32 t14 = t4 - 1262485504;
    const f32 t15 = t13 + 0x1p+0f;
    const i32 t16 = t14 >> (1 & 31);
    const i32 t17 = t14 - t16;
    const i32 t18 = t16 + 127;
    const i32 t19 = (i32)((u32)t18 << (23 & 31));
    const f32 t20 = poot_bits<f32>(t19);
    const f32 t21 = t15 * t20;
    const i32 t22 = t17 + 127;
    const i32 t23 = (i32)((u32)t22 << (23 & 31));
    const f32 t24 = poot_bits<f32>(t23);
    const f32 t25 = t21 * t24;
    const bool t26 = a != a;
    const f32 t27 = t26 ? a : t25;
    return t27;
}
POOT_KERNEL(64, POOT_APART, 0)
silu_67ee6f577d18c2bb(const u32 *__restrict__ p0, f32 *p1, const u32 n0, const u32 n1)
{
    const i32 group0 = poot_group<0>();
    const i32 thread = poot_thread();
    const u32 last0_1 = poot_last(n0, 1u);
    const i32 v0 = group0 * 64;
    const i32 v1 = v0 + thread;
    const i32 v2 = v1 / 2;
    const u32 v3 = *(poot_at(p0, poot_near(v2, last0_1)));
    const i32 v4 = v1 % 2;
    const u32 v5 = (u32)v4;
    const u32 v6 = v5 * 16u;
    const u32 v7 = v3 >> (v6 & 31);
    const f32 v8 = poot_half(v7);
    const f32 v9 = -v8;
    const f32 v10 = poot_exp(v9);
    const f32 v11 = v10 + 0x1p+0f;
    const f32 v12 = v8 / v11;
    if ((u32)v1 < n1) *(poot_at(p1, (u32)v1)) = v12;
}
