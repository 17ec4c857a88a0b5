//! Memory shared by parallel jobs: read-only and write views, reused scratch, fresh results.
//!
//! The kernels' jobs write to interleaved parts of one output (a tile of pixels, a panel of
//! channels), which slices cannot express. These few types carry that: a view knows its length,
//! every access is checked against it in builds with debug assertions (as the tests are), and the
//! `unsafe` at each use states why the access is inside and exclusive.

use std::cell::RefCell;
use std::marker::PhantomData;

use crate::simd::{Isa, Simd, simd_fn};

/// Results of at least this many bytes are stored past the caches: they would not stay in a second-level
/// cache until they are read, and memory that is stored to through the caches is first read into them.
const STREAM_FROM: usize = 2 << 20;

/// A read-only view of floats.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    start: *const f32,
    len: usize,
    memory: PhantomData<&'a [f32]>,
}

// SAFETY: a `Source` is a `&[f32]` in all but its bounds checks.
unsafe impl Send for Source<'_> {}
// SAFETY: as above.
unsafe impl Sync for Source<'_> {}

impl<'a> From<&'a [f32]> for Source<'a> {
    fn from(slice: &'a [f32]) -> Self {
        Self { start: slice.as_ptr(), len: slice.len(), memory: PhantomData }
    }
}

impl<'a> Source<'a> {
    /// The address of `count` floats at `offset`.
    ///
    /// # Safety
    /// `offset + count` must not exceed the view's length.
    #[inline(always)]
    pub(crate) unsafe fn at(self, offset: usize, count: usize) -> *const f32 {
        debug_assert!(offset + count <= self.len, "{offset} + {count} > {}", self.len);
        // SAFETY: within the view, as the caller vouches.
        unsafe { self.start.add(offset) }
    }

    /// `count ≤ LANES` floats at `offset`, the rest of the vector zero.
    ///
    /// # Safety
    /// `offset + count` must not exceed the view's length.
    #[inline(always)]
    pub(crate) unsafe fn load<S: Simd>(self, s: S, offset: usize, count: usize) -> S::Vector {
        // SAFETY: as the caller vouches.
        unsafe { load_up_to(s, self.at(offset, count), count) }
    }
}

/// A view of floats that jobs write to. Copies of it may be on several threads; each use promises
/// that no other job touches the same floats meanwhile.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    start: *mut f32,
    len: usize,
    streams: bool,
    memory: PhantomData<&'a mut [f32]>,
}

// SAFETY: every access goes through an `unsafe` method that demands exclusive use of its floats.
unsafe impl Send for Target<'_> {}
// SAFETY: as above.
unsafe impl Sync for Target<'_> {}

impl<'a> From<&'a mut [f32]> for Target<'a> {
    fn from(slice: &'a mut [f32]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), streams: false, memory: PhantomData }
    }
}

impl<'a> Target<'a> {
    /// The address of `count` floats at `offset`.
    ///
    /// # Safety
    /// `offset + count` must not exceed the view's length.
    #[inline(always)]
    pub(crate) unsafe fn at(self, offset: usize, count: usize) -> *mut f32 {
        debug_assert!(offset + count <= self.len, "{offset} + {count} > {}", self.len);
        // SAFETY: within the view, as the caller vouches.
        unsafe { self.start.add(offset) }
    }

    /// # Safety
    /// `offset + count` must not exceed the view's length, and no other job may use these floats.
    #[inline(always)]
    pub(crate) unsafe fn store<S: Simd>(self, s: S, offset: usize, v: S::Vector, count: usize) {
        // SAFETY: as the caller vouches.
        unsafe { store_up_to(s, self.at(offset, count), v, count) }
    }

    /// Whether a vector goes past the caches, stored at this offset.
    ///
    /// # Safety
    /// The offset must be within the view.
    #[inline(always)]
    pub(crate) unsafe fn streams_to<S: Simd>(self, _: S, offset: usize) -> bool {
        // SAFETY: as the caller vouches.
        self.streams && unsafe { self.at(offset, 0) as usize }.is_multiple_of(size_of::<S::Vector>())
    }

    /// [`Target::store`], past the caches within [`Target::streamed`].
    ///
    /// # Safety
    /// As [`Target::store`].
    #[inline(always)]
    pub(crate) unsafe fn store_result<S: Simd>(self, s: S, offset: usize, v: S::Vector, count: usize) {
        // SAFETY: as the caller vouches.
        unsafe {
            let to = self.at(offset, count);
            if count == S::LANES && self.streams_to(s, offset) {
                s.stream(to, v);
            } else {
                store_up_to(s, to, v, count);
            }
        }
    }

    /// A job whose results ([`Target::store_result`]) it does not read again: they are stored past the
    /// caches, if the view is large.
    pub(crate) fn streamed(self, isa: Isa, job: impl FnOnce(Self)) {
        job(Self { streams: self.len * size_of::<f32>() >= STREAM_FROM, ..self });
        fence(isa);
    }

    /// The same memory for reading.
    ///
    /// # Safety
    /// While the result is used, no job may write to the floats that are read through it, and
    /// those must have been written.
    pub(crate) unsafe fn as_source(self) -> Source<'a> {
        Source { start: self.start, len: self.len, memory: PhantomData }
    }
}

simd_fn! {
    fn fence<S>(s) {
        s.fence();
    }
}

/// # Safety
/// `count ≤ LANES` floats must be readable at `from`.
#[inline(always)]
pub(crate) unsafe fn load_up_to<S: Simd>(s: S, from: *const f32, count: usize) -> S::Vector {
    debug_assert!(count <= S::LANES);
    // SAFETY: as the caller vouches.
    unsafe { if count == S::LANES { s.load(from) } else { s.load_first(from, count) } }
}

/// # Safety
/// `count ≤ LANES` floats must be writable at `to`.
#[inline(always)]
pub(crate) unsafe fn store_up_to<S: Simd>(s: S, to: *mut f32, v: S::Vector, count: usize) {
    debug_assert!(count <= S::LANES);
    // SAFETY: as the caller vouches.
    unsafe { if count == S::LANES { s.store(to, v) } else { s.store_first(to, v, count) } }
}

/// A vector of `len` floats that `write` fills, without zeroing it first.
///
/// # Safety
/// `write` must write every float of the target it is given.
pub(crate) unsafe fn written(len: usize, write: impl FnOnce(Target)) -> Vec<f32> {
    let mut floats = Vec::with_capacity(len);
    write(Target { start: floats.as_mut_ptr(), len, streams: false, memory: PhantomData });
    // SAFETY: the capacity is `len`, and `write` wrote every float, as the caller vouches.
    unsafe { floats.set_len(len) };
    floats
}

/// Calls `with` with `len` floats that nothing was written to, for what several threads make together. Not [`Scratch`]: its
/// next user would wait for cache lines that another core has read.
pub(crate) fn unwritten<R>(len: usize, with: impl FnOnce(Target) -> R) -> R {
    let mut lines = Vec::<Line>::with_capacity(len.div_ceil(16));
    with(Target { start: lines.as_mut_ptr().cast(), len, streams: false, memory: PhantomData })
}

/// One cache line, so that scratch starts on one.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// Working memory that a later kernel on the same thread reuses: fresh pages cost more to fault in
/// than many kernels cost to run. Its contents are whatever was left there.
pub(crate) struct Scratch(Vec<Line>);

thread_local! {
    static IDLE: RefCell<Vec<Scratch>> = const { RefCell::new(Vec::new()) };
}

impl Scratch {
    /// Scratch of at least `len` floats: the smallest idle one that is large enough, or the
    /// largest one grown. Never held in the thread-local list while in use, because a job that
    /// waits in rayon may run another job on the same thread.
    pub(crate) fn take(len: usize) -> Self {
        let lines = len.div_ceil(16);
        let idle = IDLE.with_borrow_mut(|idle| {
            let fitting =
                (0..idle.len()).filter(|&i| idle[i].0.len() >= lines).min_by_key(|&i| idle[i].0.len());
            let largest = (0..idle.len()).max_by_key(|&i| idle[i].0.len());
            fitting.or(largest).map(|i| idle.swap_remove(i))
        });
        match idle {
            Some(scratch) if scratch.0.len() >= lines => scratch,
            outgrown => {
                // Free the outgrown one before its successor exists.
                drop(outgrown.map(|mut scratch| std::mem::take(&mut scratch.0)));
                Self(vec![Line([0.0; 16]); lines])
            }
        }
    }

    pub(crate) fn floats(&mut self) -> &mut [f32] {
        // SAFETY: a `Line` is sixteen floats without padding.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len() * 16) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut self.0);
        if !lines.is_empty() {
            // During thread shutdown the list may be gone; then the memory is simply freed.
            let _ = IDLE.try_with(|idle| idle.borrow_mut().push(Scratch(lines)));
        }
    }
}
