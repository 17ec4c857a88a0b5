//! How results are written: `--force`, `--json`, and images beside VOC and YOLO annotations.

use lacuna_data::convert::ImageFiles;
use lacuna_data::output::IfExists;

#[derive(clap::Args)]
pub(crate) struct OutputArgs {
    /// Replace outputs that exist
    #[arg(long)]
    pub(crate) force: bool,

    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl OutputArgs {
    pub(crate) fn if_exists(&self) -> IfExists {
        IfExists::forced(self.force)
    }
}

/// What becomes of the images when a VOC or YOLO folder is written.
#[derive(clap::Args)]
pub(crate) struct ImageFilesArgs {
    /// VOC and YOLO: hard-link the images instead of copying them, where the file system can
    #[arg(long, conflicts_with = "no_images")]
    link: bool,

    /// VOC and YOLO: write annotations only
    #[arg(long)]
    no_images: bool,
}

impl ImageFilesArgs {
    pub(crate) fn is_given(&self) -> bool {
        self.link || self.no_images
    }

    pub(crate) fn image_files(&self) -> ImageFiles {
        match (self.no_images, self.link) {
            (true, _) => ImageFiles::Leave,
            (false, true) => ImageFiles::HardLink,
            (false, false) => ImageFiles::Copy,
        }
    }
}
