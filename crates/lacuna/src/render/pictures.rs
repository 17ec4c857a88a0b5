//! Images with their given and their recovered boxes drawn in.

use std::path::Path;

use lacuna_data::Dataset;
use lacuna_data::decode::{self, RgbImage};
use lacuna_data::draw::{Outline, draw};
use lacuna_gaps::Candidate;

const GIVEN: [u8; 3] = [40, 200, 60];
const RECOVERED: [u8; 3] = [230, 40, 40];

/// An image with its given boxes green, and the recovered ones red with their confidences.
pub(crate) fn draw_recovered(
    dataset: &Dataset,
    folder: &Path,
    image: usize,
    recovered: &[Candidate],
) -> lacuna_data::Result<RgbImage> {
    let record = &dataset.images()[image];
    let path = folder.join(&record.file_name);
    let mut picture = decode::read(&path, Some((record.width, record.height)))?;
    let name = |class: usize| dataset.categories()[class].name.clone();
    let given = dataset.objects_of(image);
    let given = given.iter().map(|object| Outline {
        bbox: object.bbox,
        color: GIVEN,
        label: Some(name(object.class)),
    });
    let recovered = recovered.iter().filter(|recovered| recovered.image == image).map(|recovered| Outline {
        bbox: recovered.detection.bbox,
        color: RECOVERED,
        label: Some(format!("{} {:.2}", name(recovered.detection.class), recovered.confidence.0)),
    });
    draw(&mut picture, &given.chain(recovered).collect::<Vec<_>>());
    Ok(picture)
}
