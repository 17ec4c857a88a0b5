//! Batches of views, prepared ahead of the trainer by worker threads.
//!
//! What is in a batch depends only on (seed, epoch, image): the order of the images is drawn per
//! epoch, each view per epoch and image, and batches are made whole by one worker and handed over
//! in turn. So the number of workers changes how fast batches come, never what they are.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{self, JoinHandle};

use lacuna_boxes::Affine;
use lacuna_random::{Purpose, Rng};
use serde::{Deserialize, Serialize};

use crate::augment::{RecolorRange, Resize, ResizeRange, Resizer, ViewPlan};
use crate::dataset::{Dataset, Image, Object};
use crate::decode::{self, ImageError, OnBadImage, RgbImage};
use crate::error::Result;

/// Height and width of a batch are multiples of this: the stride of the coarsest feature level that
/// all detectors share.
pub const SIZE_DIVISOR: u32 = 32;

/// How a view of an image is made.
// A loader has two or three; a box would only be in the way.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Recipe {
    /// The teacher's: resize, flip.
    Weak(ResizeRange),
    /// The student's: resize, flip, one photometric operation.
    Strong(ResizeRange),
    /// For evaluation: resize.
    Plain(Resize),
    /// The resize and flip of the view before it in the list, then several changes of color of its
    /// own in place of that view's.
    Follower(RecolorRange),
}

impl Recipe {
    /// The random stream of a recipe at this position of the list. A strong view has stream 1 even if it is first,
    /// so that the student's views are the same with and without a teacher, and methods do not differ by their
    /// random numbers.
    fn stream(self, place: usize) -> u32 {
        if matches!(self, Self::Strong(_)) { 1 } else { place as u32 }
    }

    /// `before` is the plan of the recipe before this one.
    fn plan(self, image_size: (u32, u32), before: Option<ViewPlan>, rng: &mut Rng) -> ViewPlan {
        match self {
            Self::Weak(range) => ViewPlan::weak(image_size, range, rng),
            Self::Strong(range) => ViewPlan::strong(image_size, range, rng),
            Self::Plain(resize) => ViewPlan::plain(image_size, resize),
            Self::Follower(recolor) => {
                before.expect("the first recipe is no follower").follower(recolor, rng)
            }
        }
    }
}

/// How pixels are normalized: as they were when the weights of the backbone were trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Normalization {
    /// Red, green, blue from 0 to 1, less ImageNet's mean, divided by its standard deviation.
    Torchvision,
    /// Blue, green, red from 0 to 255, less the mean.
    Caffe,
}

impl Normalization {
    /// `(scale, shift)` of each output channel: value = scale·level + shift.
    fn constants(self) -> [(f32, f32); 3] {
        match self {
            Self::Torchvision => {
                let (mean, std) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
                std::array::from_fn(|c| ((1.0 / (255.0 * std[c])) as f32, (-mean[c] / std[c]) as f32))
            }
            Self::Caffe => [103.939, 116.779, 123.68].map(|mean: f32| (1.0, -mean)),
        }
    }

    /// Normalize one row of RGB pixels.
    pub fn row<T: Copy + Into<f32>>(self, levels: &[T], out: &mut [f32]) {
        let constants = self.constants();
        let [r, g, b] = match self {
            Self::Torchvision => [0, 1, 2],
            Self::Caffe => [2, 1, 0],
        };
        for (pixel, out) in levels.as_chunks::<3>().0.iter().zip(out.as_chunks_mut::<3>().0) {
            for (channel, from) in [r, g, b].into_iter().enumerate() {
                let (scale, shift) = constants[channel];
                out[channel] = pixel[from].into() * scale + shift;
            }
        }
    }
}

/// The order in which images are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Epoch after epoch without end, each in an order of its own. Images of similar aspect ratio
    /// share a batch.
    Shuffled,
    /// Once through, in the file's order.
    AsGiven,
}

/// How a [`Loader`] makes batches.
#[derive(Clone, Debug)]
pub struct LoaderConfig {
    /// Images per batch.
    pub batch_size: usize,
    /// Each batch has one [`View`] for each of these, all of the same images.
    pub recipes: Vec<Recipe>,
    /// How pixels become numbers.
    pub normalize: Normalization,
    /// The order of the images.
    pub order: Order,
    /// The seed of order and views.
    pub seed: u64,
    /// The number of worker threads.
    pub workers: usize,
    /// How many batches each worker may be ahead.
    pub prefetch: usize,
    /// What to do about an image that cannot be used.
    pub on_bad_image: OnBadImage,
}

/// A position in a run. A loader that starts here delivers the same batches as one that was never stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The epoch, from 0.
    pub epoch: u64,
    /// Within the epoch.
    pub batch: usize,
}

/// Images with their annotations and views.
#[derive(Debug)]
pub struct Batch {
    /// Where in the run this batch is.
    pub at: Position,
    /// Where the batch *after* this one is.
    pub next: Position,
    /// Indices in [`Dataset::images`].
    pub images: Vec<usize>,
    /// What is annotated in each image, in image coordinates.
    pub objects: Vec<Vec<Object>>,
    /// The crowd regions of each image, in image coordinates.
    pub crowds: Vec<Vec<Object>>,
    /// One for each recipe.
    pub views: Vec<View>,
}

/// A view of each image of a batch, in one block.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// The height of the block, in pixels.
    pub height: usize,
    /// The width of the block, in pixels.
    pub width: usize,
    /// `[n, height, width, 3]`; each image at the upper left, 0 elsewhere.
    pub pixels: Vec<f32>,
    /// Width and height of each image's own part.
    pub sizes: Vec<(u32, u32)>,
    /// From each image to its view.
    pub to_view: Vec<Affine>,
}

impl View {
    /// At least one image, each with the plan it was rendered by.
    fn new(plans: &[ViewPlan], rendered: &[RgbImage], normalize: Normalization) -> Self {
        let padded = |side: fn(&RgbImage) -> u32| {
            let longest = rendered.iter().map(side).max().unwrap_or(0);
            longest.next_multiple_of(SIZE_DIVISOR) as usize
        };
        let (height, width) = (padded(RgbImage::height), padded(RgbImage::width));
        let mut pixels = vec![0.0; rendered.len() * height * width * 3];
        for (image, out) in rendered.iter().zip(pixels.chunks_exact_mut(height * width * 3)) {
            let row = 3 * image.width() as usize;
            for (levels, out) in image.pixels().chunks_exact(row).zip(out.chunks_exact_mut(width * 3)) {
                normalize.row(levels, &mut out[..row]);
            }
        }
        Self {
            height,
            width,
            pixels,
            sizes: rendered.iter().map(RgbImage::size).collect(),
            to_view: plans.iter().map(ViewPlan::to_view).collect(),
        }
    }
}

/// A data set's images as batches: an iterator that owns its worker threads. It ends after the first
/// error.
pub struct Loader {
    /// One for each worker; batches come from them in turn.
    workers: Vec<Worker>,
    turn: usize,
    n_batches: usize,
    skipped: Vec<ImageError>,
    delivered: bool,
    finished: bool,
}

/// The output of a worker: a batch, unless none of its images can be used, and the images left out.
struct WorkerOutput {
    batch: Option<Batch>,
    skipped: Vec<ImageError>,
}

struct Worker {
    batches: Receiver<Result<WorkerOutput>>,
    thread: JoinHandle<()>,
}

impl Loader {
    /// Start the workers at `start`. `folder` is where the images' file names start from.
    ///
    /// # Panics
    /// When batch size, workers or prefetch is 0, or there is no recipe, or one with an empty range of
    /// sizes, or the first is to follow another, or a strong one is neither alone nor second.
    pub fn new(dataset: Arc<Dataset>, folder: PathBuf, config: LoaderConfig, start: Position) -> Self {
        let LoaderConfig { batch_size, workers, prefetch, .. } = config;
        assert!(batch_size > 0 && workers > 0 && prefetch > 0 && !config.recipes.is_empty(), "{config:?}");
        let first_follows = matches!(config.recipes[0], Recipe::Follower(_));
        assert!(!first_follows, "the first recipe has none before it to follow: {:?}", config.recipes);
        let mut streams: Vec<u32> =
            config.recipes.iter().enumerate().map(|(n, recipe)| recipe.stream(n)).collect();
        streams.sort_unstable();
        let apart = streams.is_sorted_by(|a, b| a < b);
        assert!(apart, "two recipes would draw the same random numbers: {:?}", config.recipes);
        let sides = config.recipes.iter().filter_map(|recipe| match recipe {
            Recipe::Weak(range) | Recipe::Strong(range) => Some((range.short_side, range.long_side_max)),
            Recipe::Plain(resize) => Some(((resize.short_side, resize.short_side), resize.long_side_max)),
            Recipe::Follower(_) => None,
        });
        for ((low, high), long) in sides {
            assert!(0 < low && low <= high && long > 0, "short side {low} to {high}, long side {long}");
        }
        let maker = Arc::new(BatchMaker { dataset, folder, config });
        let n_batches = maker.batches_of(start.epoch).len();
        let spawn = |worker: usize| {
            let (sender, batches) = sync_channel(prefetch);
            let maker = maker.clone();
            let thread = thread::spawn(move || {
                let mut resizer = Resizer::default();
                for (position, images, next) in maker.schedule(start).skip(worker).step_by(workers) {
                    let batch = maker.make(position, &images, next, &mut resizer);
                    let failed = batch.is_err();
                    // Sending fails when the loader was dropped.
                    if sender.send(batch).is_err() || failed {
                        return;
                    }
                }
            });
            Worker { batches, thread }
        };
        let workers = (0..workers).map(spawn).collect();
        Self { workers, turn: 0, n_batches, skipped: Vec::new(), delivered: false, finished: false }
    }

    /// Batches in an epoch.
    pub fn n_batches(&self) -> usize {
        self.n_batches
    }

    /// The images that were left out ([`OnBadImage::Skip`]) since this was last asked.
    pub fn take_skipped(&mut self) -> Vec<ImageError> {
        std::mem::take(&mut self.skipped)
    }

    /// The next output of the worker whose turn it is; `None` at the end.
    fn receive(&mut self) -> Option<Result<WorkerOutput>> {
        let turn = self.turn;
        self.turn = (turn + 1) % self.workers.len();
        match self.workers[turn].batches.recv() {
            Ok(output) => Some(output),
            Err(_) => {
                let Worker { thread, .. } = self.workers.swap_remove(turn);
                if let Err(panic) = thread.join() {
                    std::panic::resume_unwind(panic);
                }
                None
            }
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        // A worker ends when its channel is closed. All channels are closed before the first thread is joined.
        let threads: Vec<_> = self.workers.drain(..).map(|worker| worker.thread).collect();
        for thread in threads {
            let _ = thread.join();
        }
    }
}

impl Iterator for Loader {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Result<Batch>> {
        // After a whole epoch of batches without an image, there will never be one.
        let mut empty = 0;
        while !self.finished && empty < self.n_batches {
            match self.receive() {
                Some(Ok(WorkerOutput { batch, mut skipped })) => {
                    self.skipped.append(&mut skipped);
                    if let Some(batch) = batch {
                        self.delivered = true;
                        return Some(Ok(batch));
                    }
                    empty += 1;
                }
                Some(Err(error)) => {
                    self.finished = true;
                    return Some(Err(error));
                }
                None => self.finished = true,
            }
        }
        // The end of the data set; or no image of it, or of the last epoch, could be used.
        let unusable = !self.finished || !self.delivered;
        (self.finished, self.delivered) = (true, true);
        if unusable { self.skipped.pop().map(|last| Err(last.into())) } else { None }
    }
}

/// Makes the batches; shared by the workers.
struct BatchMaker {
    dataset: Arc<Dataset>,
    folder: PathBuf,
    config: LoaderConfig,
}

impl BatchMaker {
    /// All batches from `start` on: where each is, its images, where the next one is.
    fn schedule(&self, start: Position) -> impl Iterator<Item = (Position, Vec<usize>, Position)> {
        let epochs = match self.config.order {
            Order::Shuffled => start.epoch..u64::MAX,
            Order::AsGiven => start.epoch..start.epoch + 1,
        };
        epochs.flat_map(move |epoch| {
            let batches = self.batches_of(epoch);
            let n = batches.len();
            let first = if epoch == start.epoch { start.batch } else { 0 };
            batches.into_iter().enumerate().skip(first).map(move |(batch, images)| {
                let next = if batch + 1 < n {
                    Position { epoch, batch: batch + 1 }
                } else {
                    Position { epoch: epoch + 1, batch: 0 }
                };
                (Position { epoch, batch }, images, next)
            })
        })
    }

    /// The images of each batch of an epoch; every image is in exactly one.
    fn batches_of(&self, epoch: u64) -> Vec<Vec<usize>> {
        let images = self.dataset.images();
        let mut order: Vec<usize> = (0..images.len()).collect();
        if self.config.order == Order::AsGiven {
            return order.chunks(self.config.batch_size).map(<[usize]>::to_vec).collect();
        }
        Rng::new(Purpose::Order, self.config.seed, epoch, 0).shuffle(&mut order);
        // Wide and tall images fill batches apart, so that little of a batch is padding; what is
        // left of both at the end shares the last ones.
        let mut batches = Vec::new();
        let (mut wide, mut tall) = (Vec::new(), Vec::new());
        for index in order {
            let Image { width, height, .. } = images[index];
            let group = if width >= height { &mut wide } else { &mut tall };
            group.push(index);
            if group.len() == self.config.batch_size {
                batches.push(std::mem::take(group));
            }
        }
        wide.append(&mut tall);
        batches.extend(wide.chunks(self.config.batch_size).map(<[usize]>::to_vec));
        batches
    }

    fn make(
        &self,
        position: Position,
        images: &[usize],
        next: Position,
        resizer: &mut Resizer,
    ) -> Result<WorkerOutput> {
        let LoaderConfig { recipes, normalize, seed, on_bad_image, .. } = &self.config;
        let mut batch = Batch {
            at: position,
            next,
            images: Vec::new(),
            objects: Vec::new(),
            crowds: Vec::new(),
            views: Vec::new(),
        };
        let mut skipped = Vec::new();
        let mut rendered: Vec<(Vec<ViewPlan>, Vec<RgbImage>)> = vec![Default::default(); recipes.len()];
        for &index in images {
            let Image { id, width, height, ref file_name, .. } = self.dataset.images()[index];
            let image = match decode::read(&self.folder.join(file_name), Some((width, height))) {
                Ok(image) => image,
                Err(error) if *on_bad_image == OnBadImage::Skip => {
                    skipped.push(error);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let mut before = None;
            for (n, (recipe, (plans, views))) in recipes.iter().zip(&mut rendered).enumerate() {
                let mut rng = Rng::new(Purpose::View { recipe: recipe.stream(n) }, *seed, position.epoch, id);
                let plan = recipe.plan((width, height), before, &mut rng);
                views.push(plan.render(&image, resizer));
                plans.push(plan);
                before = Some(plan);
            }
            batch.images.push(index);
            batch.objects.push(self.dataset.objects_of(index));
            batch.crowds.push(self.dataset.crowds_of(index));
        }
        if batch.images.is_empty() {
            return Ok(WorkerOutput { batch: None, skipped });
        }
        let views = rendered.iter().map(|(plans, views)| View::new(plans, views, *normalize));
        batch.views = views.collect();
        Ok(WorkerOutput { batch: Some(batch), skipped })
    }
}
