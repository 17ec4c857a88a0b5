//! An allocator that keeps large blocks for the next one who asks.
//!
//! A training step allocates and frees the same tensors again and again. The system's allocator
//! gives large ones back to the kernel, which clears and maps their pages anew each time: several
//! times the cost of the convolution that fills them. A program that trains says
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: lacuna_kernels::Recycle = lacuna_kernels::Recycle::new();
//! # fn main() {}
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Blocks up to this are left to the system's allocator, which is good at them.
const SMALLEST: usize = 1 << SMALLEST_POWER;
const SMALLEST_POWER: usize = 16;

/// So are blocks from 2³⁹ bytes on, or from as many as an address space of 32 bits can hold.
const LARGEST_POWER: usize = if usize::BITS > 32 { 39 } else { 30 };

/// Sizes are rounded up to four steps per power of two, so at most a fifth of a block is unused.
const STEPS: usize = 4;

const CLASSES: usize = (LARGEST_POWER - SMALLEST_POWER) * STEPS + 1;

/// Large blocks start on a cache line.
const ALIGN: usize = 64;

/// Blocks of at least this size start on such a multiple, and on Linux the system is asked for pages of it: a
/// kernel that walks through many rows at once needs more small pages than the processor can keep in mind.
const HUGE_PAGE: usize = 2 << 20;

/// A global allocator whose large blocks are recycled within size classes. It holds at most half as
/// much again as what was in use at once at the worst moment so far: a loop of steps of varying sizes does
/// not grow. Without that half, sizes that are in use only before or after the worst moment would
/// be freed and mapped anew in every step.
#[derive(Debug)]
pub struct Recycle {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The first idle block of each class.
    idle: [*mut Block; CLASSES],
    idle_bytes: usize,
    in_use: usize,
    /// The largest `in_use` so far.
    peak: usize,
    /// The class that is asked first for a block to give back. It moves on each time, so that blocks
    /// that no one asks for any more leave sooner or later.
    hand: usize,
}

/// What an idle block's first words say.
#[derive(Debug)]
struct Block {
    next: *mut Block,
    size: usize,
}

// SAFETY: the blocks on the lists belong to the allocator alone.
unsafe impl Send for State {}

/// The class of a size, and the size of its blocks: `(4 + step) · 2^(power − 2)`.
fn class(size: usize) -> (usize, usize) {
    let power = (size - 1).ilog2() as usize;
    let quarter = 1usize << (power - 2);
    let rounded = size.next_multiple_of(quarter);
    let step = (rounded - (1 << power)) / quarter; // 1..=4, or 0 for the power itself
    ((power - SMALLEST_POWER) * STEPS + step, rounded)
}

/// The layout of a class's blocks, whatever was asked for.
fn block_layout(size: usize) -> Layout {
    let align = if size < HUGE_PAGE { ALIGN } else { HUGE_PAGE };
    // SAFETY: at most 2^LARGEST_POWER bytes, and the alignment is a power of two.
    unsafe { Layout::from_size_align_unchecked(size, align) }
}

/// A block of this size from the system, or null.
fn from_system(size: usize) -> *mut u8 {
    // SAFETY: the size is not zero.
    let block = unsafe { System.alloc(block_layout(size)) };
    #[cfg(target_os = "linux")]
    if size >= HUGE_PAGE && !block.is_null() {
        // SAFETY: advice, for whole pages of a block that is ours; without it the block is as good.
        let _ = unsafe { rustix::mm::madvise(block.cast(), size, rustix::mm::Advice::LinuxHugepage) };
    }
    block
}

impl State {
    /// An idle block of the class, or null.
    fn take(&mut self, class: usize, size: usize) -> *mut Block {
        let block = self.idle[class];
        if !block.is_null() {
            // SAFETY: a block on the list is ours, and its first words were written by `put`.
            self.idle[class] = unsafe { (*block).next };
            self.idle_bytes -= size;
        }
        block
    }

    /// # Safety
    /// The block has `size` bytes, of this class, and is no one else's any more.
    unsafe fn put(&mut self, class: usize, size: usize, block: *mut Block) {
        // SAFETY: the block is ours, and large and aligned enough.
        unsafe { block.write(Block { next: self.idle[class], size }) };
        self.idle[class] = block;
        self.idle_bytes += size;
    }

    fn given_out(&mut self, size: usize) {
        self.in_use += size;
        self.peak = self.peak.max(self.in_use);
    }

    /// Takes idle blocks off their lists until at most `limit` bytes are idle: a list of them.
    fn shrink(&mut self, limit: usize) -> *mut Block {
        let mut surplus = null_mut();
        while self.idle_bytes > limit {
            self.hand = (self.hand + 1) % CLASSES;
            let block = self.idle[self.hand];
            if !block.is_null() {
                // SAFETY: as in `take`.
                unsafe {
                    self.take(self.hand, (*block).size);
                    (*block).next = surplus;
                }
                surplus = block;
            }
        }
        surplus
    }
}

/// Gives a list of blocks back to the system.
///
/// # Safety
/// They are on no other list, and came from the system as `block_layout` of their sizes.
unsafe fn release(mut block: *mut Block) {
    while !block.is_null() {
        // SAFETY: as the caller vouches; the block is read before it is freed.
        unsafe {
            let Block { next, size } = block.read();
            System.dealloc(block.cast(), block_layout(size));
            block = next;
        }
    }
}

impl Recycle {
    /// An allocator that holds nothing yet.
    pub const fn new() -> Self {
        let state = State { idle: [null_mut(); CLASSES], idle_bytes: 0, in_use: 0, peak: 0, hand: 0 };
        Self { state: Mutex::new(state) }
    }

    /// Bytes of large blocks that are given out.
    pub fn in_use(&self) -> usize {
        self.state().in_use
    }

    /// Bytes of large blocks that the system gave us, in use or idle.
    pub fn held(&self) -> usize {
        let state = self.state();
        state.in_use + state.idle_bytes
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics under the lock; and an allocator must not panic itself.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recycles(layout: Layout) -> bool {
        layout.size() > SMALLEST && layout.align() <= ALIGN && layout.size() < 1 << LARGEST_POWER
    }

    /// A new block from the system, for which idle ones make room.
    fn fresh(&self, size: usize) -> *mut u8 {
        let surplus = {
            let mut state = self.state();
            let in_use = state.in_use + size;
            let peak = state.peak.max(in_use);
            state.shrink(peak + peak / 2 - in_use)
        };
        // SAFETY: `shrink` took them off the lists, and every block came from here.
        unsafe { release(surplus) };
        let mut block = from_system(size);
        if block.is_null() {
            let all = self.state().shrink(0);
            // SAFETY: as above.
            unsafe { release(all) };
            block = from_system(size);
        }
        if !block.is_null() {
            self.state().given_out(size);
        }
        block
    }
}

impl Default for Recycle {
    fn default() -> Self {
        Self::new()
    }
}

// SAFETY: small blocks are the system's. A large block is used by one owner at a time: it is either
// on a list or given out, and its class, hence its size, follows from the layout both times.
unsafe impl GlobalAlloc for Recycle {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !Self::recycles(layout) {
            // SAFETY: the caller's layout, passed on.
            return unsafe { System.alloc(layout) };
        }
        let (class, size) = class(layout.size());
        let mut state = self.state();
        let block = state.take(class, size);
        if block.is_null() {
            drop(state);
            return self.fresh(size);
        }
        state.given_out(size);
        block.cast()
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !Self::recycles(layout) {
            // SAFETY: the caller's layout, passed on.
            return unsafe { System.alloc_zeroed(layout) };
        }
        // SAFETY: as the caller vouches; the block has at least the layout's size, and only that much
        // of it is anyone's business.
        unsafe {
            let block = self.alloc(layout);
            if !block.is_null() {
                block.write_bytes(0, layout.size());
            }
            block
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if !Self::recycles(layout) {
            // SAFETY: it came from the system with this layout.
            return unsafe { System.dealloc(block, layout) };
        }
        let (class, size) = class(layout.size());
        let mut state = self.state();
        state.in_use -= size;
        // SAFETY: the caller gives it up, and it was given out as a block of this class.
        unsafe { state.put(class, size, block.cast()) };
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller vouches that the new size is one of a layout.
        let new = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        match (Self::recycles(layout), Self::recycles(new)) {
            // SAFETY: it came from the system with this layout.
            (false, false) => unsafe { System.realloc(block, layout, new_size) },
            (true, true) if class(layout.size()) == class(new_size) => block,
            // SAFETY: two blocks that do not overlap, each at least as large as what is copied.
            _ => unsafe {
                let moved = self.alloc(new);
                if !moved.is_null() {
                    moved.copy_from_nonoverlapping(block, layout.size().min(new_size));
                    self.dealloc(block, layout);
                }
                moved
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_at_least_its_size_and_at_most_a_quarter_larger() {
        let mut sizes: Vec<usize> = (17..LARGEST_POWER - 1)
            .flat_map(|power| [(1 << power) - 1, 1 << power, (1 << power) + 1])
            .collect();
        sizes.extend([SMALLEST + 1, 70_000, 81_920, 81_921, 100_000, 16 << 20]);
        for size in sizes {
            let (class_of, rounded) = class(size);
            assert!(rounded >= size && rounded <= size + size / 4, "{size} → {rounded}");
            assert_eq!(class(rounded), (class_of, rounded), "a block's own size is of its class");
            assert!(class_of < CLASSES);
        }
    }

    #[test]
    fn a_freed_block_is_given_out_again() {
        let recycle = Recycle::new();
        let layout = Layout::from_size_align(300_000, 4).unwrap();
        let near = Layout::from_size_align(310_000, 64).unwrap();
        // SAFETY: allocated and freed with matching layouts.
        unsafe {
            let first = recycle.alloc(layout);
            first.write_bytes(7, 300_000);
            recycle.dealloc(first, layout);
            let second = recycle.alloc_zeroed(near);
            assert_eq!(first, second);
            assert!(std::slice::from_raw_parts(second, 310_000).iter().all(|&byte| byte == 0));
            let third = recycle.alloc(near);
            assert_ne!(second, third);
            recycle.dealloc(second, near);
            recycle.dealloc(third, near);
        }
    }

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    #[test]
    fn blocks_move_between_the_system_and_the_lists() {
        let recycle = Recycle::new();
        // Below and above the border, within a class, across classes, and back.
        let sizes =
            [1000, 60_000, SMALLEST, SMALLEST + 1, 70_000, 81_920, 81_921, 5 << 20, 90_000, 40_000, 64];
        for align in [1, 16, 64, 128] {
            // SAFETY: allocated, resized and freed with matching layouts; only written bytes are read.
            unsafe {
                let mut size = 500;
                let mut block = recycle.alloc(layout(size, align));
                block.write_bytes(7, size);
                for next in sizes {
                    block = recycle.realloc(block, layout(size, align), next);
                    assert_eq!(block as usize % align, 0);
                    let kept = std::slice::from_raw_parts(block, size.min(next));
                    assert!(kept.iter().all(|&byte| byte == 7), "{size} → {next}, align {align}");
                    block.write_bytes(7, next);
                    size = next;
                }
                recycle.dealloc(block, layout(size, align));
            }
            assert_eq!(recycle.in_use(), 0);
        }
    }

    #[test]
    fn within_a_class_a_block_stays_where_it_is() {
        let recycle = Recycle::new();
        // SAFETY: allocated, resized and freed with matching layouts.
        unsafe {
            let block = recycle.alloc(layout(300_000, 4));
            assert_eq!(recycle.realloc(block, layout(300_000, 4), 310_000), block);
            recycle.dealloc(block, layout(310_000, 4));
        }
    }

    #[test]
    fn steps_of_varying_sizes_do_not_grow() {
        let recycle = Recycle::new();
        let mut largest = 0;
        for step in 0..300usize {
            let sizes = [1, 2, 3, 4].map(|part| 100_000 + (step * 7919 * part * part) % 3_000_000);
            // SAFETY: allocated and freed with matching layouts.
            unsafe {
                let blocks = sizes.map(|size| recycle.alloc(layout(size, 4)));
                largest = largest.max(recycle.in_use());
                assert!(recycle.held() <= largest + largest / 2, "step {step}");
                blocks
                    .into_iter()
                    .zip(sizes)
                    .for_each(|(block, size)| recycle.dealloc(block, layout(size, 4)));
            }
            assert!(recycle.held() <= largest + largest / 2, "step {step}");
        }
        assert_eq!(recycle.in_use(), 0);
        let all = recycle.state().shrink(0);
        // SAFETY: just taken off the lists.
        unsafe { release(all) };
        assert_eq!(recycle.held(), 0);
    }

    #[test]
    fn threads_never_share_a_block() {
        let recycle = Recycle::new();
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let recycle = &recycle;
                scope.spawn(move || {
                    for round in 0..200 {
                        let requested = layout(70_000 + (round % 7) * 30_000, 64);
                        // SAFETY: allocated and freed with one layout.
                        unsafe {
                            let block = recycle.alloc(requested);
                            block.write_bytes(thread, requested.size());
                            let bytes = std::slice::from_raw_parts(block, requested.size());
                            assert!(bytes.iter().all(|&byte| byte == thread));
                            recycle.dealloc(block, requested);
                        }
                    }
                });
            }
        });
        assert_eq!(recycle.in_use(), 0);
    }
}
