//! Vector arithmetic chosen at run time.
//!
//! An [`Isa`] is a proof that the processor has an instruction set: the only way to get one is to
//! ask the processor. Kernels are written once, generic over [`Simd`], inside [`simd_fn!`], which
//! compiles the body once per instruction set and picks by the `Isa` it is given. No compiler flag
//! is needed for the speed.

use std::ffi::OsString;
use std::fmt;
use std::sync::OnceLock;

/// An instruction set that this processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(pub(crate) Set);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Set {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2Fma,
    Portable,
}

/// What [`Isa::best`] is in this process.
static BEST: OnceLock<Isa> = OnceLock::new();

impl Isa {
    /// The widest instruction set of this processor, or what it is [held to](Self::hold).
    pub fn best() -> Self {
        *BEST.get_or_init(Self::widest)
    }

    /// Makes [`Isa::best`] what the environment variable `LACUNA_INSTRUCTIONS` [names](Self::name), if it is set: for the
    /// same kernels on processors that differ, or a measurement as if on another. To be called before any kernel.
    pub fn from_env() -> Result<(), NoSuchInstructions> {
        let Some(name) = std::env::var_os("LACUNA_INSTRUCTIONS") else { return Ok(()) };
        let isa =
            Self::available().into_iter().find(|isa| name == isa.name()).ok_or(NoSuchInstructions(name))?;
        isa.hold_to();
        Ok(())
    }

    /// Makes [`Isa::best`] this one, in the whole process and before any kernel: what a test needs whose result must be the
    /// same on every machine.
    pub fn hold_to(self) {
        let held = *BEST.get_or_init(|| self);
        assert_eq!(held, self, "a kernel has run already");
    }

    fn widest() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
            {
                return Self(Set::Avx512);
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Self(Set::Avx2Fma);
            }
        }
        Self(Set::Portable)
    }

    /// Every instruction set of this processor, the widest first. The last one is always the
    /// portable one, which the compiler turns into the target's baseline (SSE2, NEON).
    pub fn available() -> Vec<Self> {
        #[cfg(target_arch = "x86_64")]
        match Self::widest().0 {
            Set::Avx512 => return vec![Self(Set::Avx512), Self(Set::Avx2Fma), Self(Set::Portable)],
            Set::Avx2Fma => return vec![Self(Set::Avx2Fma), Self(Set::Portable)],
            Set::Portable => {}
        }
        vec![Self(Set::Portable)]
    }

    /// `avx512`, `avx2` or `portable`.
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2Fma => "avx2",
            Set::Portable => "portable",
        }
    }

    /// Floats in one vector register.
    pub(crate) fn lanes(self) -> usize {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => Avx512::LANES,
            #[cfg(target_arch = "x86_64")]
            Set::Avx2Fma => Avx2Fma::LANES,
            Set::Portable => Portable::LANES,
        }
    }
}

/// What `LACUNA_INSTRUCTIONS` names is no instruction set of this processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoSuchInstructions(OsString);

impl fmt::Display for NoSuchInstructions {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let names: Vec<&str> = Isa::available().into_iter().map(Isa::name).collect();
        write!(f, "LACUNA_INSTRUCTIONS is {:?}; this processor has {}", self.0, names.join(", "))
    }
}

impl std::error::Error for NoSuchInstructions {}

/// The operations a kernel may use on one vector of [`Simd::LANES`] floats.
///
/// A value of the implementing type is created only inside a function compiled for its
/// instruction set (see [`simd_fn!`]), so its methods may assume the instructions exist.
pub(crate) trait Simd: Copy {
    type Vector: Copy;
    const LANES: usize;

    fn splat(self, x: f32) -> Self::Vector;
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a · b + c`, rounded once where the instruction set can.
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// `a > b ? a : b`: gives `b` if either is not a number, so `max(0, x)` keeps a NaN `x`.
    fn max(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    fn div(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `then` where `a > b` or `a` is not a number, else `otherwise`.
    fn select_larger(
        self,
        a: Self::Vector,
        b: Self::Vector,
        then: Self::Vector,
        otherwise: Self::Vector,
    ) -> Self::Vector;
    /// `v` where the lane's byte is `byte`, else 0.
    fn keep_where(self, bytes: &[u8; 16], byte: u8, v: Self::Vector) -> Self::Vector;
    /// Whole numbers in 0..256 as bytes, one per lane.
    fn to_bytes(self, v: Self::Vector) -> [u8; 16];
    /// `2ⁿ` for whole `n` in −126..128.
    fn power_of_two(self, n: Self::Vector) -> Self::Vector;

    /// # Safety
    /// `LANES` floats must be readable at `from`.
    unsafe fn load(self, from: *const f32) -> Self::Vector;
    /// # Safety
    /// `LANES` floats must be writable at `to`.
    unsafe fn store(self, to: *mut f32, v: Self::Vector);
    /// Stores past the caches. Until [`Simd::fence`], other threads may not see it.
    ///
    /// # Safety
    /// `LANES` floats must be writable at `to`, which must be a multiple of their size.
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32, v: Self::Vector) {
        // SAFETY: as the caller vouches.
        unsafe { self.store(to, v) }
    }
    /// Makes what was streamed visible to whom this thread then synchronizes with.
    #[inline(always)]
    fn fence(self) {}
    /// The first `count < LANES` floats, the rest zero.
    ///
    /// # Safety
    /// `count` floats must be readable at `from`.
    unsafe fn load_first(self, from: *const f32, count: usize) -> Self::Vector;
    /// # Safety
    /// `count` floats must be writable at `to`.
    unsafe fn store_first(self, to: *mut f32, v: Self::Vector, count: usize);
    /// Stores the transpose of the 8×8 block at `from` (rows `from_stride` apart) at `to`.
    ///
    /// # Safety
    /// Eight floats must be readable at each of the eight rows, and writable likewise.
    unsafe fn transpose_8x8(self, from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize);

    /// Asks for the cache line at `address`, which need not be readable.
    #[inline(always)]
    fn prefetch(self, _address: *const f32) {}

    /// The same, as near as the second-level cache.
    #[inline(always)]
    fn prefetch_second_level(self, _address: *const f32) {}

    #[inline(always)]
    fn zero(self) -> Self::Vector {
        self.splat(0.0)
    }
}

/// Four floats as an array; the compiler maps them onto the target's baseline vectors.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

#[inline(always)]
fn map4(f: impl Fn(usize) -> f32) -> [f32; 4] {
    [f(0), f(1), f(2), f(3)]
}

impl Simd for Portable {
    type Vector = [f32; 4];
    const LANES: usize = 4;

    #[inline(always)]
    fn splat(self, x: f32) -> [f32; 4] {
        [x; 4]
    }
    #[inline(always)]
    fn add(self, a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        map4(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        map4(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        map4(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn mul_add(self, a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
        // Where the baseline has no fused instruction, `f32::mul_add` would call a slow routine.
        if cfg!(target_arch = "aarch64") {
            map4(|i| a[i].mul_add(b[i], c[i]))
        } else {
            map4(|i| a[i] * b[i] + c[i])
        }
    }
    #[inline(always)]
    fn max(self, a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        map4(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn div(self, a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        map4(|i| a[i] / b[i])
    }
    #[inline(always)]
    fn select_larger(self, a: [f32; 4], b: [f32; 4], then: [f32; 4], otherwise: [f32; 4]) -> [f32; 4] {
        map4(|i| if a[i] > b[i] || a[i].is_nan() { then[i] } else { otherwise[i] })
    }
    #[inline(always)]
    fn keep_where(self, bytes: &[u8; 16], byte: u8, v: [f32; 4]) -> [f32; 4] {
        map4(|i| if bytes[i] == byte { v[i] } else { 0.0 })
    }
    #[inline(always)]
    fn to_bytes(self, v: [f32; 4]) -> [u8; 16] {
        std::array::from_fn(|i| v.get(i).map_or(0, |&x| x as u8))
    }
    #[inline(always)]
    fn power_of_two(self, n: [f32; 4]) -> [f32; 4] {
        map4(|i| f32::from_bits(((n[i] as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> [f32; 4] {
        // SAFETY: the caller vouches for four readable floats.
        unsafe { from.cast::<[f32; 4]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, v: [f32; 4]) {
        // SAFETY: the caller vouches for four writable floats.
        unsafe { to.cast::<[f32; 4]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_first(self, from: *const f32, count: usize) -> [f32; 4] {
        // SAFETY: only the first `count` floats are read.
        map4(|i| if i < count { unsafe { *from.add(i) } } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, v: [f32; 4], count: usize) {
        for (i, &x) in v.iter().enumerate().take(count) {
            // SAFETY: only the first `count` floats are written.
            unsafe { *to.add(i) = x }
        }
    }
    #[inline(always)]
    unsafe fn transpose_8x8(self, from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        for row in 0..8 {
            for column in 0..8 {
                // SAFETY: the caller vouches for both 8×8 blocks.
                unsafe { *to.add(column * to_stride + row) = *from.add(row * from_stride + column) }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2Fma, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! The only place that names processor instructions.
    //!
    //! SAFETY of every block below: an `Avx2Fma` or `Avx512` is made only by [`simd_fn!`], inside
    //! a function compiled for that instruction set and entered only with an `Isa` that proves the
    //! processor has it. Memory operands are vouched for by the caller, as the trait says.
    #![allow(clippy::undocumented_unsafe_blocks)]

    use super::Simd;
    use std::arch::x86_64::*;

    #[derive(Clone, Copy)]
    pub(crate) struct Avx2Fma(());

    #[derive(Clone, Copy)]
    pub(crate) struct Avx512(());

    impl Avx2Fma {
        /// # Safety
        /// The processor must have AVX2 and FMA.
        #[inline(always)]
        pub(crate) unsafe fn new() -> Self {
            Self(())
        }

        /// All ones in the first `count` lanes.
        #[inline(always)]
        fn first(self, count: usize) -> __m256i {
            const ONES_THEN_ZEROS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
            let from = &ONES_THEN_ZEROS[8 - count..][..8];
            unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
        }
    }

    impl Avx512 {
        /// # Safety
        /// The processor must have AVX-512 F and VL, AVX2 and FMA.
        #[inline(always)]
        pub(crate) unsafe fn new() -> Self {
            Self(())
        }
    }

    impl Simd for Avx2Fma {
        type Vector = __m256;
        const LANES: usize = 8;

        #[inline(always)]
        fn prefetch(self, address: *const f32) {
            unsafe { _mm_prefetch(address.cast(), _MM_HINT_T0) }
        }
        #[inline(always)]
        fn prefetch_second_level(self, address: *const f32) {
            unsafe { _mm_prefetch(address.cast(), _MM_HINT_T1) }
        }
        #[inline(always)]
        fn fence(self) {
            unsafe { _mm_sfence() }
        }
        #[inline(always)]
        fn splat(self, x: f32) -> __m256 {
            unsafe { _mm256_set1_ps(x) }
        }
        #[inline(always)]
        fn add(self, a: __m256, b: __m256) -> __m256 {
            unsafe { _mm256_add_ps(a, b) }
        }
        #[inline(always)]
        fn sub(self, a: __m256, b: __m256) -> __m256 {
            unsafe { _mm256_sub_ps(a, b) }
        }
        #[inline(always)]
        fn mul(self, a: __m256, b: __m256) -> __m256 {
            unsafe { _mm256_mul_ps(a, b) }
        }
        #[inline(always)]
        fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
            unsafe { _mm256_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        fn max(self, a: __m256, b: __m256) -> __m256 {
            unsafe { _mm256_max_ps(a, b) }
        }
        #[inline(always)]
        fn div(self, a: __m256, b: __m256) -> __m256 {
            unsafe { _mm256_div_ps(a, b) }
        }
        #[inline(always)]
        fn select_larger(self, a: __m256, b: __m256, then: __m256, otherwise: __m256) -> __m256 {
            unsafe {
                let larger = _mm256_cmp_ps(a, b, _CMP_GT_OQ);
                let not_a_number = _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
                _mm256_blendv_ps(otherwise, then, _mm256_or_ps(larger, not_a_number))
            }
        }
        #[inline(always)]
        fn keep_where(self, bytes: &[u8; 16], byte: u8, v: __m256) -> __m256 {
            unsafe {
                let lanes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(bytes.as_ptr().cast()));
                let equal = _mm256_cmpeq_epi32(lanes, _mm256_set1_epi32(byte.into()));
                _mm256_and_ps(v, _mm256_castsi256_ps(equal))
            }
        }
        #[inline(always)]
        fn to_bytes(self, v: __m256) -> [u8; 16] {
            let mut bytes = [0; 16];
            unsafe {
                let whole = _mm256_cvtps_epi32(v);
                let halves = (_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
                let words = _mm_packus_epi32(halves.0, halves.1);
                _mm_storeu_si128(bytes.as_mut_ptr().cast(), _mm_packus_epi16(words, _mm_setzero_si128()));
            }
            bytes
        }
        #[inline(always)]
        fn power_of_two(self, n: __m256) -> __m256 {
            unsafe {
                let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
                _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23))
            }
        }
        #[inline(always)]
        unsafe fn load(self, from: *const f32) -> __m256 {
            unsafe { _mm256_loadu_ps(from) }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32, v: __m256) {
            unsafe { _mm256_storeu_ps(to, v) }
        }
        #[inline(always)]
        unsafe fn stream(self, to: *mut f32, v: __m256) {
            unsafe { _mm256_stream_ps(to, v) }
        }
        #[inline(always)]
        unsafe fn load_first(self, from: *const f32, count: usize) -> __m256 {
            unsafe { _mm256_maskload_ps(from, self.first(count)) }
        }
        #[inline(always)]
        unsafe fn store_first(self, to: *mut f32, v: __m256, count: usize) {
            unsafe { _mm256_maskstore_ps(to, self.first(count), v) }
        }
        #[inline(always)]
        unsafe fn transpose_8x8(self, from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
            unsafe {
                // Pairs of rows interleaved, then pairs of pairs, then the 128-bit halves swapped.
                let row = |i: usize| _mm256_loadu_ps(from.add(i * from_stride));
                let pair = |i: usize| {
                    let (a, b) = (row(i), row(i + 1));
                    (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b))
                };
                let quad = |i: usize| {
                    let ((al, ah), (bl, bh)) = (pair(i), pair(i + 2));
                    [
                        _mm256_shuffle_ps(al, bl, 0x44),
                        _mm256_shuffle_ps(al, bl, 0xEE),
                        _mm256_shuffle_ps(ah, bh, 0x44),
                        _mm256_shuffle_ps(ah, bh, 0xEE),
                    ]
                };
                let (upper, lower) = (quad(0), quad(4));
                for i in 0..4 {
                    let (u, l) = (upper[i], lower[i]);
                    _mm256_storeu_ps(to.add(i * to_stride), _mm256_permute2f128_ps(u, l, 0x20));
                    _mm256_storeu_ps(to.add((i + 4) * to_stride), _mm256_permute2f128_ps(u, l, 0x31));
                }
            }
        }
    }

    impl Simd for Avx512 {
        type Vector = __m512;
        const LANES: usize = 16;

        #[inline(always)]
        fn prefetch(self, address: *const f32) {
            unsafe { _mm_prefetch(address.cast(), _MM_HINT_T0) }
        }
        #[inline(always)]
        fn prefetch_second_level(self, address: *const f32) {
            unsafe { _mm_prefetch(address.cast(), _MM_HINT_T1) }
        }
        #[inline(always)]
        fn fence(self) {
            unsafe { _mm_sfence() }
        }
        #[inline(always)]
        fn splat(self, x: f32) -> __m512 {
            unsafe { _mm512_set1_ps(x) }
        }
        #[inline(always)]
        fn add(self, a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_add_ps(a, b) }
        }
        #[inline(always)]
        fn sub(self, a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_sub_ps(a, b) }
        }
        #[inline(always)]
        fn mul(self, a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_mul_ps(a, b) }
        }
        #[inline(always)]
        fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
            unsafe { _mm512_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        fn max(self, a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_max_ps(a, b) }
        }
        #[inline(always)]
        fn div(self, a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_div_ps(a, b) }
        }
        #[inline(always)]
        fn select_larger(self, a: __m512, b: __m512, then: __m512, otherwise: __m512) -> __m512 {
            unsafe {
                let larger = _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
                let not_a_number = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
                _mm512_mask_blend_ps(larger | not_a_number, otherwise, then)
            }
        }
        #[inline(always)]
        fn keep_where(self, bytes: &[u8; 16], byte: u8, v: __m512) -> __m512 {
            unsafe {
                let lanes = _mm512_cvtepu8_epi32(_mm_loadu_si128(bytes.as_ptr().cast()));
                let equal = _mm512_cmpeq_epi32_mask(lanes, _mm512_set1_epi32(byte.into()));
                _mm512_maskz_mov_ps(equal, v)
            }
        }
        #[inline(always)]
        fn to_bytes(self, v: __m512) -> [u8; 16] {
            let mut bytes = [0; 16];
            unsafe {
                let narrow = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v));
                _mm_storeu_si128(bytes.as_mut_ptr().cast(), narrow);
            }
            bytes
        }
        #[inline(always)]
        fn power_of_two(self, n: __m512) -> __m512 {
            unsafe {
                let exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
                _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23))
            }
        }
        #[inline(always)]
        unsafe fn load(self, from: *const f32) -> __m512 {
            unsafe { _mm512_loadu_ps(from) }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32, v: __m512) {
            unsafe { _mm512_storeu_ps(to, v) }
        }
        #[inline(always)]
        unsafe fn stream(self, to: *mut f32, v: __m512) {
            unsafe { _mm512_stream_ps(to, v) }
        }
        #[inline(always)]
        unsafe fn load_first(self, from: *const f32, count: usize) -> __m512 {
            unsafe { _mm512_maskz_loadu_ps((1 << count) - 1, from) }
        }
        #[inline(always)]
        unsafe fn store_first(self, to: *mut f32, v: __m512, count: usize) {
            unsafe { _mm512_mask_storeu_ps(to, (1 << count) - 1, v) }
        }
        #[inline(always)]
        unsafe fn transpose_8x8(self, from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
            unsafe { Avx2Fma::new().transpose_8x8(from, from_stride, to, to_stride) }
        }
    }
}

/// Defines a function whose body is compiled once per instruction set.
///
/// `fn name<S>(s, …)` becomes `fn name(isa: Isa, …)`; inside, `s: S` offers the operations of
/// [`Simd`], and plain loops are vectorized by the compiler with that instruction set. Further parameters follow as
/// `<S, const N: usize; T: Trait>`. An `unsafe fn` stays one: its caller vouches for what it is given.
macro_rules! simd_fn {
    ($(#[$attribute:meta])* $visibility:vis unsafe fn $($rest:tt)*) => {
        $crate::simd::simd_fn! { @[unsafe] $(#[$attribute])* $visibility fn $($rest)* }
    };
    ($(#[$attribute:meta])* $visibility:vis fn $($rest:tt)*) => {
        $crate::simd::simd_fn! { @[] $(#[$attribute])* $visibility fn $($rest)* }
    };
    (
        @[$($unsafe:tt)?]
        $(#[$attribute:meta])*
        $visibility:vis fn $name:ident<$S:ident $(, const $N:ident: usize)* $(; $T:ident: $bound:path)?>(
            $s:ident $(, $argument:ident: $type:ty)* $(,)?
        ) $(-> $result:ty)? $body:block
    ) => {
        $(#[$attribute])*
        #[allow(clippy::too_many_arguments, unused_unsafe)]
        $visibility $($unsafe)? fn $name<$($T: $bound,)? $(const $N: usize),*>(
            isa: $crate::simd::Isa $(, $argument: $type)*
        ) $(-> $result)? {
            #[inline(always)]
            #[allow(unused_variables, clippy::too_many_arguments)]
            $($unsafe)? fn generic<$S: $crate::simd::Simd $(, $T: $bound)? $(, const $N: usize)*>(
                $s: $S $(, $argument: $type)*
            ) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512vl,avx2,fma")]
            #[allow(clippy::too_many_arguments)]
            $($unsafe)? fn avx512<$($T: $bound,)? $(const $N: usize),*>($($argument: $type),*) $(-> $result)? {
                // SAFETY: this function runs only where the processor has the instructions; the caller
                // vouches for the arguments.
                unsafe { generic::<_, $($T,)? $($N),*>($crate::simd::Avx512::new() $(, $argument)*) }
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            #[allow(clippy::too_many_arguments)]
            $($unsafe)? fn avx2_fma<$($T: $bound,)? $(const $N: usize),*>($($argument: $type),*) $(-> $result)? {
                // SAFETY: as above.
                unsafe { generic::<_, $($T,)? $($N),*>($crate::simd::Avx2Fma::new() $(, $argument)*) }
            }

            match isa.0 {
                // SAFETY: an `Isa` exists only for an instruction set that was detected; the caller
                // vouches for the arguments.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Set::Avx512 => unsafe { avx512::<$($T,)? $($N),*>($($argument),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Set::Avx2Fma => unsafe { avx2_fma::<$($T,)? $($N),*>($($argument),*) },
                // SAFETY: the caller vouches for the arguments.
                $crate::simd::Set::Portable => unsafe {
                    generic::<_, $($T,)? $($N),*>($crate::simd::Portable $(, $argument)*)
                },
            }
        }
    };
}
pub(crate) use simd_fn;
