//! What synthetic annotation files of COCO's size have in common.

use std::io::{self, Write};

/// One annotation in so many is a crowd.
pub(crate) const CROWD_EVERY: usize = 85;

/// Of 1..=90, the ids that no category of COCO has.
const UNUSED_IDS: [usize; 10] = [12, 26, 29, 30, 45, 66, 68, 69, 71, 83];

/// The ids of COCO's 80 categories.
pub(crate) fn coco_category_ids() -> Vec<usize> {
    (1..=90).filter(|id| !UNUSED_IDS.contains(id)).collect()
}

/// Ids of images have gaps.
pub(crate) fn image_id(n: usize) -> usize {
    9 + 5 * n
}

/// Ends the annotations and writes the categories and the end of the file.
pub(crate) fn write_categories(out: &mut impl Write, comma: &str) -> io::Result<()> {
    out.write_all(br#"],"categories": ["#)?;
    for (n, id) in coco_category_ids().iter().enumerate() {
        separate(out, comma, n)?;
        write!(out, r#"{{"supercategory": "thing","id": {id},"name": "thing {id}"}}"#)?;
    }
    out.write_all(b"]}")
}

/// A comma before every item but the first.
pub(crate) fn separate(out: &mut impl Write, comma: &str, n: usize) -> io::Result<()> {
    if n > 0 { out.write_all(comma.as_bytes()) } else { Ok(()) }
}
