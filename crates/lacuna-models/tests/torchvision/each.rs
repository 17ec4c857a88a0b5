//! Which detectors there are fixtures of.

/// A test for each detector of the fixtures: `$agrees(detector, backbone)`.
macro_rules! for_each_detector {
    ($agrees:ident) => {
        #[test]
        fn retinanet_resnet18() {
            $agrees("retinanet", "resnet18");
        }

        #[test]
        fn retinanet_resnet50() {
            $agrees("retinanet", "resnet50");
        }

        #[test]
        fn fcos_resnet18() {
            $agrees("fcos", "resnet18");
        }

        #[test]
        fn fcos_resnet50() {
            $agrees("fcos", "resnet50");
        }

        #[test]
        fn faster_rcnn_resnet18() {
            $agrees("fasterrcnn", "resnet18");
        }

        #[test]
        fn faster_rcnn_resnet50() {
            $agrees("fasterrcnn", "resnet50");
        }
    };
}
