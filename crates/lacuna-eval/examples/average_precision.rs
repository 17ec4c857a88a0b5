//! COCO's average precision of a handful of detections.
//!
//!     cargo run -p lacuna-eval --example average_precision

use lacuna_data::{Builder, Xywh};
use lacuna_eval::{DetectionMatch, ImageDetection, average_precision, match_detections};

fn main() {
    let mut builder = Builder::default();
    let class = builder.category("cat");
    let image = builder.image("a.jpg", 640, 480);
    for x in [20.0, 220.0, 420.0] {
        let bbox = Xywh { x, y: 100.0, width: 150.0, height: 200.0 };
        builder.annotation(image, class, bbox, false, ());
    }
    let dataset = builder.finish();

    let detection = |x: f64, score: f64| {
        let bbox = Xywh { x, y: 100.0, width: 150.0, height: 200.0 };
        ImageDetection { image, class, bbox, score }
    };
    // Exact, a duplicate of the first, shifted by a fifth of its width, and far from the last object.
    let detections =
        [detection(20.0, 0.9), detection(25.0, 0.8), detection(250.0, 0.7), detection(490.0, 0.2)];

    for (detection, matched) in detections.iter().zip(match_detections(&dataset, &detections, 0.5)) {
        let result = match matched {
            DetectionMatch::Matched(iou) => format!("right, IoU {iou:.2}"),
            DetectionMatch::Wrong => "wrong".into(),
            DetectionMatch::Ignored => "in a crowd, ignored".into(),
        };
        println!("score {:.1}: {result}", detection.score);
    }
    let result = average_precision(&dataset, &detections);
    for (name, value) in [("AP", result.ap), ("AP50", result.ap50), ("AP75", result.ap75)] {
        println!("{name}: {}", value.map_or("no objects".into(), |value| format!("{:.1} %", 100.0 * value)));
    }
}
