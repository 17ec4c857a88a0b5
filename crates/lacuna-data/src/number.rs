//! Numbers as files have them.

/// The number of 64 bits that reads like this one of 32: 0.1 stays 0.1.
pub fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}
