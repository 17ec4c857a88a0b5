//! Numbers as they are written to files.

/// The `f64` with the same shortest decimal form as this `f32`: 0.1 stays 0.1.
pub fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}
