//! Rotation of hues, as torchvision does it.

use crate::decode::RgbImage;

/// Turn all hues by this part of the color circle: torchvision's `adjust_hue` of a Pillow image.
///
/// Hue, saturation and value are bytes in between, and the hue wraps at 256 though the circle has
/// 255 steps. So an image is not quite the same after a turn by 0.
pub(super) fn turn_hues(image: &mut RgbImage, turn: f32) {
    let steps = (f64::from(turn) * 255.0) as i32 as u8;
    for pixel in image.pixels_mut().as_chunks_mut::<3>().0 {
        let [hue, saturation, value] = to_hsv(*pixel);
        *pixel = from_hsv([hue.wrapping_add(steps), saturation, value]);
    }
}

// Both ways are in f32 where Pillow's C has `float`, and in f64 where a literal makes it `double`.

fn to_hsv([r, g, b]: [u8; 3]) -> [u8; 3] {
    let value = r.max(g).max(b);
    let chroma = value - r.min(g).min(b);
    if chroma == 0 {
        return [0, 0, value];
    }
    let chroma = f32::from(chroma);
    let missing = |sample: u8| f32::from(value - sample) / chroma;
    let (red, green, blue) = (missing(r), missing(g), missing(b));
    let sixths = if r == value {
        blue - green
    } else if g == value {
        (2.0 + f64::from(red) - f64::from(blue)) as f32
    } else {
        (4.0 + f64::from(green) - f64::from(red)) as f32
    };
    // From −1/6..5/6 to 0..1. The sum is rounded before it is wrapped, as in Pillow.
    let circle = f64::from(sixths) / 6.0 + 1.0;
    let hue = (if circle < 1.0 { circle } else { circle - 1.0 }) as f32;
    let byte = |part: f32| (f64::from(part) * 255.0) as u8;
    [byte(hue), byte(chroma / f32::from(value)), value]
}

fn from_hsv([hue, saturation, value]: [u8; 3]) -> [u8; 3] {
    if saturation == 0 {
        return [value; 3];
    }
    let sixths = f64::from(hue) * 6.0 / 255.0;
    let sector = sixths as u8;
    let within = (sixths - f64::from(sector)) as f32;
    let saturation = (f64::from(saturation) / 255.0) as f32;
    let part = |part: f64| (f64::from(value) * part).round() as u8;
    let low = || part(1.0 - f64::from(saturation));
    let falling = || part(1.0 - f64::from(saturation * within));
    let rising = || part(1.0 - f64::from(saturation) * (1.0 - f64::from(within)));
    match sector % 6 {
        0 => [value, rising(), low()],
        1 => [falling(), value, low()],
        2 => [low(), value, rising()],
        3 => [low(), falling(), value],
        4 => [rising(), low(), value],
        _ => [value, low(), falling()],
    }
}
