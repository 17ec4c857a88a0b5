//! Checks of calibrators that are read from files.

/// Why the numbers of a file are not a calibrator: no fit could have produced them.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub(crate) enum Invalid {
    #[error("`{field}` is {value}, not a number above 0")]
    NotPositive { field: &'static str, value: f64 },
    #[error("`{field}` is {value}, not a number of at least 0")]
    Negative { field: &'static str, value: f64 },
    #[error("`{field}` is {value}, not a finite number")]
    NotFinite { field: &'static str, value: f64 },
    #[error("`a` and `b` are both 0: every score would have the same confidence")]
    Flat,
    #[error("`{field}` is empty")]
    Empty { field: &'static str },
    #[error("number {index} of `{field}` is {value}, not in [0, 1]")]
    OutOfRange { field: &'static str, index: usize, value: f64 },
    #[error("number {index} of `{field}` is not above the one before")]
    NotAscending { field: &'static str, index: usize },
    #[error("the confidence of knot {index} is below the one before")]
    Falling { index: usize },
    #[error("the weights sum to {0}, not to 1")]
    Weights(f64),
}

pub(crate) fn positive(field: &'static str, value: f64) -> Result<f64, Invalid> {
    if value.is_finite() && value > 0.0 { Ok(value) } else { Err(Invalid::NotPositive { field, value }) }
}

pub(crate) fn finite(field: &'static str, value: f64) -> Result<f64, Invalid> {
    if value.is_finite() { Ok(value) } else { Err(Invalid::NotFinite { field, value }) }
}

/// Check that there is at least one value, and that all are in `[0, 1]`.
pub(crate) fn probabilities(
    field: &'static str,
    values: impl IntoIterator<Item = f64>,
) -> Result<(), Invalid> {
    let mut count = 0;
    for (index, value) in values.into_iter().enumerate() {
        if !(0.0..=1.0).contains(&value) {
            return Err(Invalid::OutOfRange { field, index, value });
        }
        count += 1;
    }
    if count > 0 { Ok(()) } else { Err(Invalid::Empty { field }) }
}
