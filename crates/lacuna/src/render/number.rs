//! Numbers for people.

/// `14,928`
pub(crate) fn thousands(n: usize) -> String {
    let digits = n.to_string();
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// COCO's way to print a share: `38.5`; a dash where there is none.
pub(crate) fn percent(share: Option<f64>) -> String {
    share.map_or("–".to_owned(), |share| format!("{:.1}", 100.0 * share))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_three_digits() {
        let grouped = [0, 7, 999, 1000, 14_928, 1_000_000].map(thousands);
        assert_eq!(grouped, ["0", "7", "999", "1,000", "14,928", "1,000,000"]);
    }
}
