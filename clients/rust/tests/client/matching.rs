use serde_json::Value;

/// Compares as clients/README.md describes.
pub fn assert_matches(place: &str, want: &Value, got: &Value) {
    assert!(matches(want, got), "{place}: want {want}, got {got}");
}

fn matches(want: &Value, got: &Value) -> bool {
    match want {
        Value::Object(members) => {
            if let Some(bounds) = members.get("$between") {
                let number = got.as_f64().or_else(|| got.as_str()?.parse().ok());
                return number
                    .is_some_and(|number| bounds[0].as_f64() <= Some(number) && Some(number) <= bounds[1].as_f64());
            }
            if let Some(start) = members.get("$starts") {
                return got.as_str().is_some_and(|text| text.starts_with(start.as_str().unwrap()));
            }
            members.iter().all(|(name, want)| match (want, got.get(name)) {
                (Value::Null, None) => got.is_object(),
                (want, got) => got.is_some_and(|got| matches(want, got)),
            })
        }
        Value::Array(items) => got
            .as_array()
            .is_some_and(|got| got.len() == items.len() && items.iter().zip(got).all(|(want, got)| matches(want, got))),
        _ => want == got,
    }
}
