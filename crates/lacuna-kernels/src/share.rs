//! How a convolution is shared out among threads.
//!
//! A core that reads what another has just written, or writes to what another has just read, waits for each cache line
//! as long as for hundreds of products. So work is cut into *shares*: whoever takes one transforms and packs all that it
//! needs by itself, even if others need the same.

use rayon::prelude::*;

/// Runs shares at once. Each is told how many threads there are for it: one if every thread has as many shares.
pub(crate) fn at_once<T: Send>(shares: Vec<T>, share: impl Fn(T, usize) + Send + Sync) {
    let threads = rayon::current_num_threads();
    let for_each = match shares.len() {
        n if n.is_multiple_of(threads) => 1,
        n => threads.div_ceil(n).max(2),
    };
    shares.into_par_iter().with_max_len(1).for_each(|of| share(of, for_each));
}

/// Runs the jobs of a share: one after another if it has one thread. Others that have nothing left to do could help, but
/// what they read would be slow to write to the next time, which would be late, be helped again, and so on.
pub(crate) fn within<T: Send>(
    threads: usize,
    jobs: impl IntoIterator<Item = T>,
    job: impl Fn(T) + Send + Sync,
) {
    if threads == 1 {
        jobs.into_iter().for_each(job);
    } else {
        jobs.into_iter().collect::<Vec<T>>().into_par_iter().with_max_len(1).for_each(job);
    }
}
