//! Read a COCO data set, hide half of the boxes of each class, and write both parts.
//!
//!     cargo run -p lacuna-data --example sparsify

use std::error::Error;
use std::path::Path;

use lacuna_data::layout::{Layout, ReadOptions};
use lacuna_data::output::{IfExists, write_file};
use lacuna_data::sparsify::{Percent, Sparse, SparsifyKind, sparsify};
use lacuna_data::{Builder, Dataset, Xywh, coco};

/// Three images with boxes of two classes.
fn example_dataset() -> Dataset {
    let mut builder = Builder::default();
    let classes = ["cat", "dog"].map(|name| builder.category(name));
    for name in ["a.jpg", "b.jpg", "c.jpg"] {
        let image = builder.image(name, 640, 480);
        for n in 0..8 {
            let bbox = Xywh { x: 70.0 * f64::from(n), y: 120.0, width: 60.0, height: 90.0 };
            builder.annotation(image, classes[n as usize % 2], bbox, false, ());
        }
    }
    builder.finish()
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("annotations.json");
    write_file(&path, IfExists::Refuse, |out| coco::write(&example_dataset(), out))?;

    // `Layout::detect` recognizes COCO, VOC and YOLO; a single file has one split.
    let split = Layout::detect(&path)?.read(None, ReadOptions::default())?;
    let half = Percent::new(50.0).ok_or("not a percentage")?;
    let Sparse { kept, hidden } = sparsify(&split.dataset, SparsifyKind::Split1(half), 0);

    for (name, part) in [("sparse.json", &kept), ("hidden.json", &hidden)] {
        // The file appears whole or not at all, and replaces nothing.
        write_file(&folder.path().join(name), IfExists::Refuse, |out| coco::write(part, out))?;
        print_counts(Path::new(name), part);
    }
    Ok(())
}

fn print_counts(path: &Path, dataset: &Dataset) {
    println!("{}: {} boxes", path.display(), dataset.annotations().len());
    for (index, category) in dataset.categories().iter().enumerate() {
        let boxes = dataset.annotations().iter().filter(|annotation| annotation.category == index);
        println!("    {}: {}", category.name, boxes.count());
    }
}
