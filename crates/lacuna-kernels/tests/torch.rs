//! Every kernel against PyTorch, from `fixtures/torch-kernels`.

// A failed `unwrap` is a failed test, in helpers, too.
#![allow(clippy::unwrap_used)]

mod common;

use common::assert_close;
use lacuna_kernels::{
    Conv2d, Epilogue, FocalLoss, Grid, Isa, MaxPool2d, Region, RoiAlign, SegmentNorm, Sgd, SgdParameter,
    UpsampleAdd, Window, relu_gradient,
};
use serde_json::Value;

fn cases(kernel: &str) -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/torch-kernels/kernels.json");
    let mut all: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    match all[kernel].take() {
        Value::Array(cases) => cases,
        case => vec![case],
    }
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

fn doubles(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

fn size(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}

/// `f` with every instruction set, and how to name it in a failure.
fn with_each(case: &Value, f: impl Fn(Isa, &dyn Fn(&str) -> String)) {
    for isa in Isa::available() {
        let numbers = case.as_object().unwrap().iter().filter(|(_, v)| v.is_number());
        let shape: Vec<String> = numbers.map(|(k, v)| format!("{k}={v}")).collect();
        f(isa, &|what| format!("{what}, {}, {}", isa.name(), shape.join(" ")));
    }
}

#[test]
fn conv_block() {
    for case in cases("conv") {
        with_each(&case, |isa, what| {
            let grid = Grid::new(size(&case["n"]), size(&case["h"]), size(&case["w"]));
            let window = Window {
                kernel: size(&case["kernel"]),
                stride: size(&case["stride"]),
                padding: size(&case["padding"]),
                dilation: size(&case["dilation"]),
            };
            let channels = size(&case["k"]);
            let conv = Conv2d::new(vec![grid], size(&case["c"]), channels, window).unwrap();
            let [x, w, scale, shift, residual, mut dy] =
                ["x", "weight", "scale", "shift", "residual", "dy"].map(|name| floats(&case[name]));
            let epilogue =
                Epilogue { scale: Some(&scale), shift: Some(&shift), residual: Some(&residual), relu: true };
            let y = conv.forward(isa, &x, &w, &epilogue).unwrap();
            assert_close(&y, &doubles(&case["y"]), 1e-5, &what("y"));

            let dshift = relu_gradient(isa, Some(&y), &mut dy, channels, true).unwrap().unwrap();
            assert_close(&dy, &doubles(&case["dresidual"]), 1e-6, &what("dresidual"));
            assert_close(&dshift, &doubles(&case["dshift"]), 1e-5, &what("dshift"));
            let dx = conv.input_gradient(isa, &dy, &w, Some(&scale)).unwrap();
            assert_close(&dx, &doubles(&case["dx"]), 1e-5, &what("dx"));
            let dw = conv.weight_gradient(isa, &x, &dy, Some(&scale)).unwrap();
            assert_close(&dw, &doubles(&case["dweight"]), 1e-5, &what("dweight"));
        });
    }
}

#[test]
fn max_pool() {
    for case in cases("max_pool") {
        with_each(&case, |isa, what| {
            let grid = Grid::new(size(&case["n"]), size(&case["h"]), size(&case["w"]));
            let window = Window::new(size(&case["kernel"]), size(&case["stride"]), size(&case["padding"]));
            let pool = MaxPool2d::new(grid, size(&case["c"]), window).unwrap();
            let pooled = pool.forward(isa, &floats(&case["x"])).unwrap();
            assert_close(&pooled.y, &doubles(&case["y"]), 1e-7, &what("y"));
            let dx = pool.gradient(isa, &floats(&case["dy"]), &pooled.taps).unwrap();
            assert_close(&dx, &doubles(&case["dx"]), 1e-6, &what("dx"));
        });
    }
}

#[test]
fn upsample_add() {
    for case in cases("upsample_add") {
        with_each(&case, |isa, what| {
            let top = Grid::new(size(&case["n"]), size(&case["top_h"]), size(&case["top_w"]));
            let lateral = Grid::new(size(&case["n"]), size(&case["h"]), size(&case["w"]));
            let upsample = UpsampleAdd::new(top, lateral, size(&case["c"])).unwrap();
            let y = upsample.forward(isa, &floats(&case["top"]), &floats(&case["lateral"])).unwrap();
            assert_close(&y, &doubles(&case["y"]), 1e-6, &what("y"));
            let dtop = upsample.top_gradient(isa, &floats(&case["dy"])).unwrap();
            assert_close(&dtop, &doubles(&case["dtop"]), 1e-6, &what("dtop"));
        });
    }
}

#[test]
fn roi_align() {
    for case in cases("roi_align").into_iter().chain(cases("roi_align_edges")) {
        with_each(&case, |isa, what| {
            let grid = Grid::new(2, 9, 11);
            let align = RoiAlign {
                height: 3,
                width: 2,
                spatial_scale: case["spatial_scale"].as_f64().unwrap() as f32,
                sampling_ratio: size(&case["sampling_ratio"]),
                aligned: case["aligned"].as_bool().unwrap(),
            };
            let regions: Vec<Region> =
                case["regions"].as_array().unwrap().iter().map(|r| region(&floats(r))).collect();
            let y = align.forward(isa, &floats(&case["x"]), grid, 5, &regions).unwrap();
            assert_close(&y, &doubles(&case["y"]), 1e-5, &what("y"));
            let dx = align.gradient(isa, &floats(&case["dy"]), grid, 5, &regions).unwrap();
            assert_close(&dx, &doubles(&case["dx"]), 1e-5, &what("dx"));
        });
    }
}

fn region(row: &[f32]) -> Region {
    Region { image: row[0] as usize, x1: row[1], y1: row[2], x2: row[3], y2: row[4] }
}

#[test]
fn focal() {
    for case in cases("focal") {
        with_each(&case, |isa, what| {
            let [alpha, gamma] = ["alpha", "gamma"].map(|name| case[name].as_f64().unwrap() as f32);
            let labels: Vec<i32> =
                case["labels"].as_array().unwrap().iter().map(|v| v.as_i64().unwrap() as i32).collect();
            let weights = floats(&case["weights"]);
            let result = FocalLoss { alpha, gamma }
                .forward(isa, &floats(&case["logits"]), size(&case["classes"]), &labels, Some(&weights))
                .unwrap();
            assert_close(&[result.loss], &[case["loss"].as_f64().unwrap()], 1e-6, &what("loss"));
            assert_close(&result.gradient, &doubles(&case["gradient"]), 2e-6, &what("gradient"));
        });
    }
}

#[test]
fn group_and_batch_norm() {
    for case in cases("group_norm").into_iter().chain(cases("batch_norm")) {
        with_each(&case, |isa, what| {
            let [n, h, w, c, groups] = ["n", "h", "w", "c", "groups"].map(|name| size(&case[name]));
            let of_batch = groups == 0;
            let normalize = if of_batch {
                SegmentNorm::new(&[n * h * w], c, c, 1e-5)
            } else {
                SegmentNorm::new(&vec![h * w; n], c, groups, 1e-5)
            };
            let normalize = normalize.unwrap();
            let relu = case["relu"].as_bool().unwrap();
            let [x, weight, bias, mut dy] = ["x", "weight", "bias", "dy"].map(|name| floats(&case[name]));
            let residual = case.get("residual").map(floats);
            let result = normalize.forward(isa, &x, &weight, &bias, residual.as_deref(), relu).unwrap();
            assert_close(&result.y, &doubles(&case["y"]), 1e-6, &what("y"));
            if of_batch {
                let bias = (n * h * w - 1) as f32 / (n * h * w) as f32;
                let unbiased: Vec<_> = result.statistics.variance.iter().map(|v| v / bias).collect();
                assert_close(&result.statistics.mean, &doubles(&case["mean"]), 1e-6, &what("mean"));
                assert_close(&unbiased, &doubles(&case["unbiased_variance"]), 1e-6, &what("variance"));
            }
            let y = relu.then_some(&result.y[..]);
            let gradients =
                normalize.gradients(isa, &x, &result.statistics, &weight, y, &mut dy, true).unwrap();
            assert_close(&gradients.x.unwrap(), &doubles(&case["dx"]), 2e-6, &what("dx"));
            assert_close(&gradients.weight, &doubles(&case["dweight"]), 2e-6, &what("dweight"));
            assert_close(&gradients.bias, &doubles(&case["dbias"]), 1e-6, &what("dbias"));
            if case.get("dresidual").is_some() {
                assert_close(&dy, &doubles(&case["dresidual"]), 1e-7, &what("dresidual"));
            }
        });
    }
}

#[test]
fn sgd() {
    for case in cases("sgd") {
        for isa in Isa::available() {
            let sgd = Sgd { learning_rate: 0.1, momentum: 0.9, weight_decay: 0.01 };
            let mut parameter = floats(&case["start"]);
            let mut velocity = vec![0.0; parameter.len()];
            for gradient in case["gradients"].as_array().unwrap() {
                let gradient = floats(gradient);
                sgd.step(
                    isa,
                    &mut [SgdParameter {
                        parameter: &mut parameter,
                        gradient: &gradient,
                        velocity: &mut velocity,
                    }],
                )
                .unwrap();
            }
            assert_close(&parameter, &doubles(&case["end"]), 1e-6, isa.name());
        }
    }
}
