//! Serialization of optional values as `"off"`: TOML has no null, and every key of a resolved configuration has a
//! value. For `#[serde(with = "lacuna_data::off")]`.

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const OFF: &str = "off";

/// Write the value, or `"off"` for `None`.
pub fn serialize<T: Serialize, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => value.serialize(serializer),
        None => serializer.serialize_str(OFF),
    }
}

/// Read a value, or `None` from `"off"`.
pub fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    match toml::Value::deserialize(deserializer)? {
        toml::Value::String(text) if text == OFF => Ok(None),
        value => T::deserialize(value).map(Some).map_err(|error| Error::custom(error.message())),
    }
}
