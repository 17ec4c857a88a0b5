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
use std::sync::Mutex;

/// Blocks below this are left to the system's allocator, which is good at them.
const SMALLEST: usize = 1 << 16;

/// Sizes are rounded up to four steps per power of two, so at most a fifth of a block is unused.
const STEPS: usize = 4;

/// Up to blocks of 2³⁹ bytes.
const CLASSES: usize = (39 - 16) * STEPS + 1;

/// Large blocks start on a cache line.
const ALIGN: usize = 64;

/// A global allocator whose large blocks are recycled within size classes. What it keeps is bounded
/// by the largest amount that was ever in use at once per class: a loop of equal steps does not grow.
#[derive(Debug)]
pub struct Recycle {
    idle: Mutex<Idle>,
}

/// The first idle block of each class; each block's first word is the next one's address.
#[derive(Debug)]
struct Idle([*mut Block; CLASSES]);

#[derive(Debug)]
struct Block {
    next: *mut Block,
}

// SAFETY: the blocks on the lists belong to the allocator alone.
unsafe impl Send for Idle {}

/// The class of a size, and the size of its blocks: `(4 + step) · 2^(power − 2)`.
fn class(size: usize) -> (usize, usize) {
    let power = (size - 1).ilog2() as usize;
    let quarter = 1usize << (power - 2);
    let rounded = size.next_multiple_of(quarter);
    let step = (rounded - (1 << power)) / quarter; // 1..=4, or 0 for the power itself
    ((power - 16) * STEPS + step, rounded)
}

impl Recycle {
    pub const fn new() -> Self {
        Self { idle: Mutex::new(Idle([null_mut(); CLASSES])) }
    }

    fn recycles(layout: Layout) -> bool {
        layout.size() > SMALLEST && layout.align() <= ALIGN && layout.size() < 1 << 39
    }

    fn take(&self, class: usize) -> *mut Block {
        let Ok(mut idle) = self.idle.lock() else { return null_mut() };
        let block = idle.0[class];
        if !block.is_null() {
            // SAFETY: a block on the list is ours, and its first word was written by `dealloc`.
            idle.0[class] = unsafe { (*block).next };
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
        let block = self.take(class);
        if !block.is_null() {
            return block.cast();
        }
        // SAFETY: the size is not zero, and the alignment is a power of two.
        unsafe { System.alloc(Layout::from_size_align_unchecked(size, ALIGN)) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !Self::recycles(layout) {
            // SAFETY: the caller's layout, passed on.
            return unsafe { System.alloc_zeroed(layout) };
        }
        let (class, size) = class(layout.size());
        let block = self.take(class);
        if block.is_null() {
            // Pages fresh from the system are zero already.
            // SAFETY: as in `alloc`.
            return unsafe { System.alloc_zeroed(Layout::from_size_align_unchecked(size, ALIGN)) };
        }
        // SAFETY: the block has at least the layout's size.
        unsafe { block.cast::<u8>().write_bytes(0, layout.size()) };
        block.cast()
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if !Self::recycles(layout) {
            // SAFETY: it came from the system with this layout.
            return unsafe { System.dealloc(block, layout) };
        }
        let (class, size) = class(layout.size());
        match self.idle.lock() {
            Ok(mut idle) => {
                let block: *mut Block = block.cast();
                // SAFETY: the block is no one else's any more, and large and aligned enough.
                unsafe { block.write(Block { next: idle.0[class] }) };
                idle.0[class] = block;
            }
            // SAFETY: it came from the system with this layout.
            Err(_) => unsafe { System.dealloc(block, Layout::from_size_align_unchecked(size, ALIGN)) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_at_least_its_size_and_at_most_a_quarter_larger() {
        let mut sizes: Vec<usize> =
            (17..38).flat_map(|power| [(1 << power) - 1, 1 << power, (1 << power) + 1]).collect();
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
}
