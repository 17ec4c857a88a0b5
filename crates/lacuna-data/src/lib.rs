//! Detection data sets: reading and writing them, hiding a part of their boxes, making them, and
//! turning them into batches of augmented views.

pub mod random;
pub mod synth;
