//! Hints that name command-line options. Libraries give hints without them.

use lacuna_data::Error;

/// What the user can do about an error of the data layer.
pub fn data_hint(error: &Error) -> Option<String> {
    let hint = error.hint();
    match error {
        Error::Exists { .. } => Some("choose another name, or replace it with `--force`".into()),
        Error::NotHidden { .. } => {
            Some("`lacuna sparsify` writes it with `--hidden`, beside the sparse annotations".into())
        }
        Error::ManySplits { .. } => hint.map(|splits| format!("choose one with `--split`; {splits}")),
        Error::NameClash { .. } => hint.map(|rename| format!("{rename} with `--split`")),
        Error::ClassesDiffer { .. } => {
            Some("`--classes` restricts both to the classes that they share".into())
        }
        Error::NoImages { .. } => hint.map(|tried| format!("name it with `--images DIR`; {tried}")),
        _ => hint,
    }
}
