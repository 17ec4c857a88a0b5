//! Training steps do not grow, whatever their sizes. A test of its own, because the allocator that counts
//! is the program's.

use burn::Tensor;
use burn::tensor::{Device, Distribution};
use lacuna_kernels::Recycle;
use lacuna_models::ops::{
    FocalLoss, Sgd, TensorEpilogue, Update, Window, conv2d, focal_loss, max_pool2d, sgd_step,
};

#[global_allocator]
static ALLOCATOR: Recycle = Recycle::new();

const CLASSES: usize = 16;

fn random<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(shape, Distribution::Uniform(-0.1, 0.1), device)
}

/// The loss of two convolutions with a max-pool between them, over images of `size × size`.
fn forward(size: usize, weight: Tensor<4>, device: &Device) -> Tensor<1> {
    let window = Window::new(3, 1, 1);
    let block =
        |x, weight| conv2d(x, weight, window, TensorEpilogue { relu: true, ..TensorEpilogue::default() });
    let x = block(random([2, size, size, CLASSES], device), weight.clone());
    let x = block(max_pool2d(x, Window::new(3, 2, 1)), weight);
    let [batch, height, width, _] = x.dims();
    let rows = batch * height * width;
    let focal = FocalLoss { alpha: 0.25, gamma: 2.0 };
    focal_loss(x.reshape([rows, CLASSES]), vec![-1; rows], vec![1.0; rows], focal)
}

#[test]
fn steps_and_evaluations_do_not_grow() {
    // Each thread keeps scratch from the first job that falls to it; one thread makes that countable.
    rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap().install(steps_and_evaluations);
}

fn steps_and_evaluations() {
    let (plain, tracked) = (Device::flex(), Device::flex().autodiff());
    let shape = [3, 3, CLASSES, CLASSES];
    let len = shape.iter().product();
    let mut weight: Tensor<1> = random([len], &plain);
    let mut velocity = Tensor::zeros([len], &plain);
    let sgd = Sgd { learning_rate: 1e-3, momentum: 0.9, weight_decay: 0.0 };
    let mut after = Vec::new();
    for step in 0..24 {
        let size = [64, 48, 57, 72][step % 4];
        let trained = Tensor::from_inner(weight.clone().reshape(shape)).require_grad();
        let grads = forward(size, trained.clone(), &tracked).backward();
        let gradient = trained.grad(&grads).expect("it is trained").reshape([len]);
        let update = Update { parameter: weight, gradient, velocity };
        (weight, velocity) = sgd_step(vec![update], sgd).remove(0);
        // An evaluation on the plain device: nothing is recorded.
        drop(forward(size, weight.clone().reshape(shape), &plain));
        drop((trained, grads));
        after.push((ALLOCATOR.in_use(), ALLOCATOR.held()));
    }
    let (in_use, held): (Vec<_>, Vec<_>) = after.into_iter().unzip();
    // Scratch settles in the first rounds.
    assert!(in_use[23] <= in_use[11], "in use after each step: {in_use:?}");
    assert!(held[23] <= held[11] + held[11] / 4, "held after each step: {held:?}");

    // Below a frozen weight the input is not kept: the output takes its place.
    let window = Window::new(3, 1, 1);
    let image = random([2, 64, 64, CLASSES], &tracked).require_grad();
    let frozen = random(shape, &tracked);
    let x = image * 2.0;
    let before = ALLOCATOR.in_use();
    let x = conv2d(x, frozen, window, TensorEpilogue::default());
    assert_eq!(ALLOCATOR.in_use(), before);
    drop(x.sum().backward());

    // A recorded forward pass that is dropped and not run backward stays in Burn's graph, until one from
    // the same parameter, or from another once that parameter is gone, is run backward.
    let leaf = || Tensor::from_inner(weight.clone().reshape(shape)).require_grad();
    let step = |leaf: &Tensor<4>| drop(forward(64, leaf.clone(), &tracked).backward());
    let skip = |leaf: &Tensor<4>| drop(forward(64, leaf.clone(), &tracked));
    let (parameter, other) = (leaf(), leaf());
    step(&parameter);
    let before = ALLOCATOR.in_use();
    (0..5).for_each(|_| skip(&parameter));
    println!("skipped: {before} → {}", ALLOCATOR.in_use());
    step(&parameter);
    assert_eq!(ALLOCATOR.in_use(), before, "freed by the next step");
    (0..5).for_each(|_| skip(&leaf()));
    println!("skipped: {before} → {}", ALLOCATOR.in_use());
    step(&other);
    assert_eq!(ALLOCATOR.in_use(), before, "freed by a step of another parameter");
}
