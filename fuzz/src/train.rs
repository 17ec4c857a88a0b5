//! Targets for the readers of `lacuna-train`. A target panics when a property does not hold.

use std::fs;
use std::path::Path;

use lacuna_data::decode::RgbImage;
use lacuna_data::output::IfExists;
use lacuna_train::config::{ConfigSource, RunConfig};
use lacuna_train::model::{Model, ModelError};
use tempfile::TempDir;

/// The configuration of a run and then assignments, with zero bytes between them.
pub fn config(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut texts = text.split('\0');
    let text = texts.next().unwrap_or_default();
    let overrides: Vec<String> = texts.map(str::to_owned).collect();
    let path = Path::new("a.toml");
    let config = match RunConfig::parse(ConfigSource { path, text, overrides: &overrides }) {
        Ok(config) => config,
        Err(error) => return drop((error.to_string(), format!("{error:?}"), error.hint)),
    };
    let text = config.to_toml();
    let again = RunConfig::parse(ConfigSource { path, text: &text, overrides: &[] })
        .expect("what was written can be read");
    assert_eq!(config, again);
    assert_eq!(config.difference(&again), None);
}

/// The folder of a model: `model.toml`, a zero byte, and the file of its weights.
pub fn model(bytes: &[u8]) {
    let zero = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let folder = TempDir::new().expect("a temporary folder");
    let [config, weights] = Model::files(folder.path());
    fs::write(config, &bytes[..zero]).expect("a file");
    fs::write(weights, bytes.get(zero + 1..).unwrap_or_default()).expect("a file");
    let model = match Model::read(folder.path()) {
        Ok(model) => model,
        Err(error) => return render(&error),
    };

    let copy = folder.path().join("copy");
    model.write(&copy, IfExists::Refuse).expect("a folder");
    let again = Model::read(&copy).expect("what was written can be read");
    assert_eq!(model.config, again.config);
    let weights = |model: &Model| {
        let [_, weights] = Model::files(&folder.path().join("again"));
        model.write(&folder.path().join("again"), IfExists::Replace).expect("a folder");
        fs::read(weights).expect("a file")
    };
    assert!(weights(&model) == weights(&again), "the same weights");

    // Larger views would only be slow.
    if model.config.input.long_side_max <= 64 {
        let image = RgbImage::new(8, 4, (0..96).collect());
        for detection in model.detect(&image) {
            assert!(detection.class < model.config.categories.len());
        }
    }
}

fn render(error: &ModelError) {
    let _ = (error.to_string(), format!("{error:?}"));
}
