//! Drawing of labeled boxes on pictures.

use std::convert::Infallible;

use embedded_graphics::mono_font::iso_8859_1::{FONT_7X13, FONT_9X18, FONT_10X20};
use embedded_graphics::mono_font::{MonoFont, MonoTextStyle};
use embedded_graphics::pixelcolor::Rgb888;
use embedded_graphics::prelude::*;
use embedded_graphics::primitives::{PrimitiveStyle, PrimitiveStyleBuilder, Rectangle, StrokeAlignment};
use embedded_graphics::text::{Baseline, Text};
use lacuna_boxes::Box2;

use crate::decode::RgbImage;

/// A box to be drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Outline {
    /// The box, in pixels of the picture.
    pub bbox: Box2,
    /// Red, green, blue.
    pub color: [u8; 3],
    /// The label. The font has the characters of ISO 8859-1; others appear as a question mark.
    pub label: Option<String>,
}

/// Draw outlines, each over those before it, and over all of them their labels.
///
/// A line runs around its box, so that whatever is in the box is seen whole; where the box reaches the
/// image's border, the line runs along the border inside. A label is on a tab above its box, or in it when
/// there is no room above. Boxes without area, and those outside the image, are not drawn.
pub fn draw(image: &mut RgbImage, outlines: &[Outline]) {
    let pen = Pen::for_image(image);
    let drawn = outlines.iter().filter_map(|outline| Some((pen.around(outline.bbox, image)?, outline)));
    let drawn: Vec<(Rectangle, &Outline)> = drawn.collect();
    for (inside, outline) in &drawn {
        pen.frame(image, *inside, outline.color);
    }
    for (inside, outline) in &drawn {
        if let Some(label) = outline.label.as_deref().filter(|l| !l.is_empty()) {
            pen.tab(image, *inside, outline.color, label);
        }
    }
}

/// Between the lines and whatever is behind them, so that no ground hides a line of its own color.
const CONTRAST: Rgb888 = Rgb888::new(16, 16, 16);

/// Widths and sizes in pixels, in proportion to the image.
struct Pen {
    /// Of the colored line.
    line: u32,
    /// Of the dark lines on both its sides.
    edge: u32,
    font: &'static MonoFont<'static>,
    /// Pixels for each of the font's, whose largest is too small for large images.
    magnified: u32,
}

impl Pen {
    fn for_image(image: &RgbImage) -> Self {
        let side = (image.width() + image.height()) / 2;
        let line = (side / 240).max(2);
        let font = match line {
            2 => &FONT_7X13,
            3 => &FONT_9X18,
            _ => &FONT_10X20,
        };
        Self { line, edge: (line / 4).max(1), font, magnified: (line / 3).max(1) }
    }

    /// How far a frame reaches beyond what is in it.
    fn reach(&self) -> u32 {
        self.line + 2 * self.edge
    }

    /// The pixels that a frame of `bbox` goes around: those that the box touches, unless there would be
    /// no room for the frame.
    fn around(&self, bbox: Box2, image: &RgbImage) -> Option<Rectangle> {
        let bbox = bbox.clip(image.width() as f32, image.height() as f32);
        if bbox.is_degenerate() {
            return None;
        }
        let reach = self.reach() as i32;
        let side = |from: f32, to: f32, length: u32| {
            let last = length as i32 - reach;
            let from = (from.floor() as i32).clamp(reach, (last - 1).max(reach));
            (from, (to.ceil() as i32).min(last).max(from + 1))
        };
        let (x1, x2) = side(bbox.x1, bbox.x2, image.width());
        let (y1, y2) = side(bbox.y1, bbox.y2, image.height());
        Some(Rectangle::with_corners(Point::new(x1, y1), Point::new(x2 - 1, y2 - 1)))
    }

    fn frame(&self, image: &mut RgbImage, inside: Rectangle, color: [u8; 3]) {
        let mut canvas = Canvas::plain(image);
        let stroke = |width, color| {
            let builder = PrimitiveStyleBuilder::new().stroke_alignment(StrokeAlignment::Outside);
            builder.stroke_width(width).stroke_color(color).build()
        };
        canvas.paint(&inside.into_styled(stroke(self.reach(), CONTRAST)));
        canvas.paint(&inside.offset(self.edge as i32).into_styled(stroke(self.line, rgb(color))));
    }

    fn tab(&self, image: &mut RgbImage, inside: Rectangle, color: [u8; 3], label: &str) {
        let glyph = self.font.character_size * self.magnified;
        let padding = self.line;
        // Whatever would be beyond the image is not set; line breaks would be beyond the tab.
        let room = (image.width() / glyph.width) as usize;
        let label =
            label.chars().take(room).map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c });
        let label: String = label.collect();
        let text = Size::new(glyph.width * label.chars().count() as u32, glyph.height);
        let size = text + Size::new_equal(2 * (self.edge + padding));

        let frame = inside.offset(self.reach() as i32);
        // Tab and frame share a dark line.
        let above = frame.top_left.y + self.edge as i32 - size.height as i32;
        let top = if above >= 0 { above } else { inside.top_left.y - self.edge as i32 };
        let left = frame.top_left.x.min(image.width() as i32 - size.width as i32).max(0);
        let tab = Rectangle::new(Point::new(left, top), size);

        let mut canvas = Canvas::plain(image);
        canvas.paint(&tab.into_styled(PrimitiveStyle::with_fill(CONTRAST)));
        canvas.paint(&tab.offset(-(self.edge as i32)).into_styled(PrimitiveStyle::with_fill(rgb(color))));
        let origin = tab.top_left + Size::new_equal(self.edge + padding);
        let style = MonoTextStyle::new(self.font, legible_on(color));
        let mut canvas = Canvas { image, origin, magnified: self.magnified };
        canvas.paint(&Text::with_baseline(&label, Point::zero(), style, Baseline::Top));
    }
}

fn rgb([r, g, b]: [u8; 3]) -> Rgb888 {
    Rgb888::new(r, g, b)
}

/// Black or white, whichever differs more from this color (by ITU-R 601's weights of the channels).
fn legible_on([r, g, b]: [u8; 3]) -> Rgb888 {
    let brightness = (299 * u32::from(r) + 587 * u32::from(g) + 114 * u32::from(b)) / 1000;
    if brightness >= 128 { Rgb888::BLACK } else { Rgb888::WHITE }
}

/// An image to draw on, in whole or magnified pixels. What is outside is left out.
struct Canvas<'a> {
    image: &'a mut RgbImage,
    /// Where (0, 0) is in the image.
    origin: Point,
    magnified: u32,
}

impl<'a> Canvas<'a> {
    fn plain(image: &'a mut RgbImage) -> Self {
        Self { image, origin: Point::zero(), magnified: 1 }
    }

    fn paint<T>(&mut self, what: &impl Drawable<Color = Rgb888, Output = T>) {
        let Ok(_) = what.draw(self);
    }
}

impl OriginDimensions for Canvas<'_> {
    fn size(&self) -> Size {
        Size::new(self.image.width(), self.image.height())
    }
}

impl DrawTarget for Canvas<'_> {
    type Color = Rgb888;
    type Error = Infallible;

    fn draw_iter<I: IntoIterator<Item = Pixel<Rgb888>>>(&mut self, pixels: I) -> Result<(), Infallible> {
        let (image, width) = (self.bounding_box(), self.image.width() as usize);
        for Pixel(at, color) in pixels {
            let corner = self.origin + at * self.magnified as i32;
            let square = Rectangle::new(corner, Size::new_equal(self.magnified));
            for Point { x, y } in square.intersection(&image).points() {
                let first = 3 * (y as usize * width + x as usize);
                self.image.pixels_mut()[first..first + 3].copy_from_slice(&[color.r(), color.g(), color.b()]);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GROUND: [u8; 3] = [200, 210, 220];
    const COLOR: [u8; 3] = [230, 60, 70];
    const DARK: [u8; 3] = [16, 16, 16];

    fn picture(width: u32, height: u32) -> RgbImage {
        RgbImage::new(width, height, GROUND.repeat((width * height) as usize))
    }

    fn at(image: &RgbImage, x: u32, y: u32) -> [u8; 3] {
        let first = 3 * (y * image.width() + x) as usize;
        [0, 1, 2].map(|c| image.pixels()[first + c])
    }

    fn outline(x1: f32, y1: f32, x2: f32, y2: f32, label: Option<&str>) -> Outline {
        Outline { bbox: Box2::new(x1, y1, x2, y2), color: COLOR, label: label.map(String::from) }
    }

    fn drawn(outlines: &[Outline]) -> RgbImage {
        let mut image = picture(100, 80);
        draw(&mut image, outlines);
        image
    }

    /// The first and the last row and column of all that changed.
    fn changed(image: &RgbImage) -> Option<(u32, u32, u32, u32)> {
        let all = (0..image.height()).flat_map(|y| (0..image.width()).map(move |x| (x, y)));
        all.filter(|&(x, y)| at(image, x, y) != GROUND).fold(None, |found, (x, y)| {
            let (x1, y1, x2, y2) = found.unwrap_or((x, y, x, y));
            Some((x1.min(x), y1.min(y), x2.max(x), y2.max(y)))
        })
    }

    #[test]
    fn a_line_between_dark_ones_around_every_pixel_the_box_touches() {
        let image = drawn(&[outline(20.5, 30.0, 59.1, 50.0, None)]);
        let row: Vec<[u8; 3]> = (14..22).map(|x| at(&image, x, 40)).collect();
        assert_eq!(row, [GROUND, GROUND, DARK, COLOR, COLOR, DARK, GROUND, GROUND]);
        let row: Vec<[u8; 3]> = (58..66).map(|x| at(&image, x, 40)).collect();
        assert_eq!(row, [GROUND, GROUND, DARK, COLOR, COLOR, DARK, GROUND, GROUND]);
        assert_eq!(changed(&image), Some((16, 26, 63, 53)));
        let inside = (30..50).flat_map(|y| (20..60).map(move |x| (x, y)));
        assert!(inside.into_iter().all(|(x, y)| at(&image, x, y) == GROUND));
    }

    #[test]
    fn a_box_over_the_border_has_its_line_inside() {
        for image in [
            drawn(&[outline(-30.0, -1e30, f32::INFINITY, 300.0, None)]),
            drawn(&[outline(0.0, 0.0, 100.0, 80.0, None)]),
        ] {
            assert_eq!((at(&image, 0, 40), at(&image, 1, 40), at(&image, 4, 40)), (DARK, COLOR, GROUND));
            assert_eq!((at(&image, 99, 40), at(&image, 98, 40), at(&image, 95, 40)), (DARK, COLOR, GROUND));
            assert_eq!((at(&image, 50, 79), at(&image, 50, 78), at(&image, 50, 75)), (DARK, COLOR, GROUND));
        }
        // Hardly inside, it is there all the same.
        assert_eq!(changed(&drawn(&[outline(99.5, 79.5, 120.0, 90.0, None)])), Some((91, 71, 99, 79)));
    }

    #[test]
    fn what_has_no_place_is_not_drawn() {
        let nan = f32::NAN;
        let nowhere = [
            outline(200.0, 10.0, 300.0, 50.0, Some("right of it")),
            outline(-50.0, -50.0, 0.0, 0.0, Some("above")),
            outline(40.0, 40.0, 40.0, 60.0, Some("no width")),
            outline(60.0, 40.0, 40.0, 60.0, Some("less than none")),
            outline(nan, 10.0, 50.0, 50.0, Some("not a number")),
        ];
        assert_eq!(drawn(&nowhere), picture(100, 80));
    }

    #[test]
    fn a_label_is_above_its_box_or_else_in_it() {
        let plain = outline(20.0, 40.0, 60.0, 60.0, None);
        let labeled = Outline { label: Some("cat".into()), ..plain.clone() };
        // 13 pixels of text, 2 around it and the dark lines, one of them the frame's.
        assert_eq!(changed(&drawn(&[plain])), Some((16, 36, 63, 63)));
        assert_eq!(changed(&drawn(&[labeled])), Some((16, 36 + 1 - 19, 63, 63)));

        let no_room = outline(20.0, 10.0, 80.0, 60.0, Some("cat"));
        assert_eq!(changed(&drawn(&[no_room])), Some((16, 6, 83, 63)));
        // At the right border the tab moves to the left, and what is too long is cut.
        assert_eq!(
            changed(&drawn(&[outline(80.0, 40.0, 90.0, 60.0, Some("elephant"))])),
            Some((38, 18, 99, 63))
        );
        assert_eq!(
            changed(&drawn(&[outline(80.0, 40.0, 90.0, 60.0, Some(&"long".repeat(99)))])),
            Some((0, 18, 99, 63))
        );
    }

    #[test]
    fn characters_that_the_font_lacks_are_question_marks() {
        let with = |label: &str| drawn(&[outline(20.0, 40.0, 60.0, 60.0, Some(label))]);
        assert_eq!(with("a猫b\n"), with("a?b?"));
        assert_ne!(with("ü"), with("?"));
        assert_eq!(with(""), drawn(&[outline(20.0, 40.0, 60.0, 60.0, None)]));
    }

    #[test]
    fn labels_are_over_all_lines() {
        let labeled = outline(20.0, 50.0, 60.0, 70.0, Some("dog"));
        let across = Outline { color: [0, 0, 255], ..outline(30.0, 20.0, 50.0, 40.0, None) };
        let both = [labeled.clone(), across.clone()];
        assert_eq!(drawn(&both), drawn(&[across, labeled]));
    }

    #[test]
    fn lines_and_letters_grow_with_the_image() {
        let of = |side| Pen::for_image(&picture(side, side));
        assert_eq!((of(32).line, of(256).line, of(1024).line), (2, 2, 4));
        let (small, large) = (of(256), of(2400));
        assert_eq!((large.line, large.edge), (10, 2));
        assert!(large.font.character_size.height * large.magnified >= 4 * small.font.character_size.height);
    }

    #[test]
    fn text_is_black_on_bright_colors_and_white_on_dark_ones() {
        assert_eq!((legible_on([255, 230, 60]), legible_on([20, 20, 120])), (Rgb888::BLACK, Rgb888::WHITE));
    }

    fn coordinate() -> impl Strategy<Value = f32> {
        prop_oneof![8 => -50.0f32..150.0, 1 => proptest::num::f32::ANY]
    }

    fn any_outline() -> impl Strategy<Value = Outline> {
        let corners = (coordinate(), coordinate(), coordinate(), coordinate());
        (corners, any::<[u8; 3]>(), any::<Option<String>>()).prop_map(|((x1, y1, x2, y2), color, label)| {
            Outline { bbox: Box2::new(x1, y1, x2, y2), color, label }
        })
    }

    proptest! {
        #[test]
        fn anything_can_be_drawn_on_anything(
            (width, height) in (1u32..100, 1u32..100), outlines in prop::collection::vec(any_outline(), 0..6)
        ) {
            draw(&mut picture(width, height), &outlines);
        }

        #[test]
        fn a_frame_changes_nothing_in_it_or_beyond(bbox in any_outline().prop_map(|o| o.bbox)) {
            let mut image = picture(100, 80);
            let pen = Pen::for_image(&image);
            let inside = pen.around(bbox, &image);
            draw(&mut image, &[Outline { bbox, color: COLOR, label: None }]);
            let in_frame = |inside: Rectangle, at| {
                inside.offset(pen.reach() as i32).contains(at) && !inside.contains(at)
            };
            for (x, y) in (0..80).flat_map(|y| (0..100).map(move |x| (x, y))) {
                let expected = inside.is_some_and(|inside| in_frame(inside, Point::new(x as i32, y as i32)));
                prop_assert_eq!(at(&image, x, y) != GROUND, expected);
            }
        }
    }
}
