//! How a convolution is split among threads.
//!
//! A core that reads what another has just written, or writes to what another has just read, waits for each cache line
//! as long as hundreds of products take. So work is split into *shares*. The thread that takes a share transforms and
//! packs everything it needs, even if another share needs the same.

use rayon::prelude::*;

/// Runs shares in parallel. Each is passed the number of threads it may use: one if all threads have equally many shares.
pub(crate) fn at_once<T: Send>(shares: Vec<T>, share: impl Fn(T, usize) + Send + Sync) {
    let threads = rayon::current_num_threads();
    let for_each = match shares.len() {
        n if n.is_multiple_of(threads) => 1,
        n => threads.div_ceil(n).max(2),
    };
    shares.into_par_iter().with_max_len(1).for_each(|item| share(item, for_each));
}

/// Runs the jobs of a share, one after another if it has one thread. Idle threads do not help: what they read would be
/// slow to write the next time, so that the next share would be late and be helped again.
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
