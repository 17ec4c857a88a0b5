//! Figures rendered to pixels.

use std::convert::Infallible;

use embedded_graphics::mono_font::iso_8859_1 as regular;
use embedded_graphics::mono_font::{MonoFont, MonoTextStyle};
use embedded_graphics::pixelcolor::Rgb888;
use embedded_graphics::prelude::*;
use embedded_graphics::primitives::{Circle, PrimitiveStyle};
use embedded_graphics::text::{Alignment, Baseline, Text, TextStyleBuilder};
use lacuna_data::decode::RgbImage;

use crate::figure::{Anchor, Figure, Mark, Point as At, Role};
use crate::theme::{self, LIGHT};

/// Antialiasing: marks are drawn this many times finer in each direction, and pixels are averaged.
const FINER: u32 = 3;
/// The largest scale that has a font.
const MAX_SCALE: u32 = 3;

impl Figure {
    /// Render the figure on light paper with `scale` pixels (1 to 3) per unit. The font has the characters of
    /// ISO 8859-1; others appear as a question mark.
    pub fn to_image(&self, scale: u32) -> RgbImage {
        let scale = scale.clamp(1, MAX_SCALE);
        let mut fine = Canvas::new(self.size(), scale * FINER);
        for mark in self.marks() {
            fine.draw(mark);
        }
        let mut canvas = fine.averaged();
        for mark in self.marks() {
            canvas.write(mark);
        }
        RgbImage::new(canvas.width, canvas.height, canvas.pixels)
    }
}

struct Canvas {
    width: u32,
    height: u32,
    /// Pixels for each unit of the figure.
    scale: u32,
    /// The opacity of what is drawn.
    opacity: f64,
    pixels: Vec<u8>,
}

impl Canvas {
    fn new((width, height): (f64, f64), scale: u32) -> Self {
        let [width, height] = [width, height].map(|side| side.ceil() as u32 * scale);
        let pixels = LIGHT.paper.repeat((width * height) as usize);
        Self { width, height, scale, opacity: 1.0, pixels }
    }

    /// Draw a mark, except text.
    fn draw(&mut self, mark: &Mark) {
        let role = mark.role();
        match mark {
            Mark::Line { points, .. } => {
                for dash in dashed(points, theme::dash_pattern(role)) {
                    self.stroke(&dash, theme::line_width(role), color(role));
                }
            }
            Mark::Area { points, .. } => self.fill(points, color(role), theme::AREA_OPACITY),
            Mark::Rectangle { corners: [a, b], .. } => {
                let corners = [*a, At::new(b.x, a.y), *b, At::new(a.x, b.y)];
                self.fill(&corners, color(role), theme::RECTANGLE_OPACITY);
            }
            Mark::Dot { center, .. } => self.disc(*center, theme::DOT_RADIUS, color(role)),
            Mark::Text { .. } => {}
        }
    }

    /// Draw the text of a mark.
    fn write(&mut self, mark: &Mark) {
        let Mark::Text { role, anchor, at, text } = mark else { return };
        let alignment = match anchor {
            Anchor::Start => Alignment::Left,
            Anchor::Middle => Alignment::Center,
            Anchor::End => Alignment::Right,
        };
        let text: String = text.chars().map(in_font).collect();
        let style = MonoTextStyle::new(font(*role, self.scale), color(*role));
        let layout = TextStyleBuilder::new().alignment(alignment).baseline(Baseline::Alphabetic).build();
        self.paint(&Text::with_text_style(&text, self.place(*at), style, layout));
    }

    /// Draw a line with round joins. The thick lines of embedded-graphics overflow when they are long.
    fn stroke(&mut self, points: &[At], width: f64, color: Rgb888) {
        for side in points.windows(2) {
            let (a, b) = (side[0], side[1]);
            let length = (b.x - a.x).hypot(b.y - a.y);
            if length > 0.0 {
                let across = width / 2.0 / length;
                let (x, y) = ((b.y - a.y) * across, (a.x - b.x) * across);
                let corners = [(a, 1.0), (b, 1.0), (b, -1.0), (a, -1.0)];
                self.fill(&corners.map(|(at, to)| At::new(at.x + to * x, at.y + to * y)), color, 1.0);
            }
        }
        for &join in points.get(1..points.len().saturating_sub(1)).unwrap_or(&[]) {
            self.disc(join, width / 2.0, color);
        }
    }

    fn disc(&mut self, center: At, radius: f64, color: Rgb888) {
        let diameter = (2.0 * radius * f64::from(self.scale)).round().max(1.0) as u32;
        let circle = Circle::with_center(self.place(center), diameter);
        self.paint(&circle.into_styled(PrimitiveStyle::with_fill(color)));
    }

    /// Fill a polygon by the even-odd rule, row by row.
    fn fill(&mut self, corners: &[At], color: Rgb888, opacity: f64) {
        let scale = f64::from(self.scale);
        let corners: Vec<(f64, f64)> = corners.iter().map(|at| (at.x * scale, at.y * scale)).collect();
        self.opacity = opacity;
        let rows = corners.iter().map(|corner| corner.1.clamp(0.0, f64::from(self.height)));
        let (first, last) = rows.fold((f64::INFINITY, 0.0f64), |(low, high), y| (low.min(y), high.max(y)));
        for row in first.floor() as i32..last.ceil() as i32 {
            let y = f64::from(row) + 0.5;
            let sides = corners.iter().zip(corners.iter().cycle().skip(1));
            let crossing = sides.filter(|(a, b)| (a.1 <= y) != (b.1 <= y));
            let mut crossings: Vec<f64> =
                crossing.map(|(a, b)| a.0 + (y - a.1) / (b.1 - a.1) * (b.0 - a.0)).collect();
            crossings.sort_by(f64::total_cmp);
            for pair in crossings.chunks_exact(2) {
                let last = f64::from(self.width);
                let [from, to] = [pair[0], pair[1]].map(|x| x.clamp(0.0, last).round() as i32);
                let Ok(()) = self.draw_iter((from..to).map(|x| Pixel(Point::new(x, row), color)));
            }
        }
        self.opacity = 1.0;
    }

    fn averaged(&self) -> Self {
        let (width, height) = (self.width / FINER, self.height / FINER);
        let mut pixels = Vec::with_capacity((3 * width * height) as usize);
        for y in 0..height {
            for x in 0..width {
                for channel in 0..3 {
                    let square = (0..FINER * FINER).map(|i| (FINER * x + i % FINER, FINER * y + i / FINER));
                    let sum: u32 =
                        square.map(|(x, y)| u32::from(self.pixels[self.index(x, y) + channel])).sum();
                    pixels.push((sum / (FINER * FINER)) as u8);
                }
            }
        }
        Self { width, height, scale: self.scale / FINER, opacity: 1.0, pixels }
    }

    fn place(&self, at: At) -> Point {
        let [x, y] = [at.x, at.y].map(|v| (v.clamp(-1e4, 2e4) * f64::from(self.scale)).round() as i32);
        Point::new(x, y)
    }

    fn index(&self, x: u32, y: u32) -> usize {
        3 * (y * self.width + x) as usize
    }

    fn paint<T>(&mut self, what: &impl Drawable<Color = Rgb888, Output = T>) {
        let Ok(_) = what.draw(self);
    }
}

impl OriginDimensions for Canvas {
    fn size(&self) -> Size {
        Size::new(self.width, self.height)
    }
}

impl DrawTarget for Canvas {
    type Color = Rgb888;
    type Error = Infallible;

    fn draw_iter<I: IntoIterator<Item = Pixel<Rgb888>>>(&mut self, pixels: I) -> Result<(), Infallible> {
        let all = self.bounding_box();
        for Pixel(at, color) in pixels {
            if all.contains(at) {
                let first = self.index(at.x as u32, at.y as u32);
                let under = &mut self.pixels[first..first + 3];
                for (under, over) in under.iter_mut().zip([color.r(), color.g(), color.b()]) {
                    let mixed = f64::from(*under) * (1.0 - self.opacity) + f64::from(over) * self.opacity;
                    *under = mixed.round() as u8;
                }
            }
        }
        Ok(())
    }
}

fn color(role: Role) -> Rgb888 {
    let [r, g, b] = LIGHT.color(role);
    Rgb888::new(r, g, b)
}

/// The font whose letters are about as wide as in a browser.
fn font(role: Role, scale: u32) -> &'static MonoFont<'static> {
    match (scale, role) {
        (1, Role::Title) => &regular::FONT_7X13_BOLD,
        (1, _) => &regular::FONT_6X12,
        (2, Role::Title) => &regular::FONT_9X18_BOLD,
        (2, _) => &regular::FONT_9X18,
        _ => &regular::FONT_10X20,
    }
}

/// Replace characters that the font lacks by similar ones.
fn in_font(c: char) -> char {
    match c {
        '\u{2010}'..='\u{2015}' | '\u{2212}' => '-',
        '\u{2018}' | '\u{2019}' => '\'',
        '\u{201c}' | '\u{201d}' => '"',
        c if c.is_control() => '?',
        c => c,
    }
}

/// Cut a line into its dashes.
fn dashed(points: &[At], dashes: &[f64]) -> Vec<Vec<At>> {
    if dashes.is_empty() {
        return vec![points.to_vec()];
    }
    let mut cut: Vec<Vec<At>> = Vec::new();
    let (mut dash, mut left) = (0, dashes[0]);
    for side in points.windows(2) {
        let (a, b) = (side[0], side[1]);
        let length = (b.x - a.x).hypot(b.y - a.y);
        let along = |done: f64| At::new(a.x + (b.x - a.x) * done / length, a.y + (b.y - a.y) * done / length);
        let mut done = 0.0;
        while done < length {
            let end = (done + left).min(length);
            if dash % 2 == 0 {
                // A dash continues around a corner.
                match cut.last_mut().filter(|last| last.last() == Some(&a) && done == 0.0) {
                    Some(last) => last.push(along(end)),
                    None => cut.push(vec![along(done), along(end)]),
                }
            }
            left -= end - done;
            if left <= 1e-9 {
                dash = (dash + 1) % dashes.len();
                left = dashes[dash];
            }
            done = end;
        }
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(image: &RgbImage, x: u32, y: u32) -> [u8; 3] {
        let first = 3 * (y * image.width() + x) as usize;
        [0, 1, 2].map(|c| image.pixels()[first + c])
    }

    #[test]
    fn marks_have_their_colors_at_their_places() {
        let mut figure = Figure::new("", "", (40.0, 20.0));
        figure.add(Mark::Rectangle {
            role: Role::Series(0),
            corners: [At::new(10.0, 15.0), At::new(0.0, 5.0)],
        });
        figure.line(Role::Series(0), [At::new(20.0, 10.0), At::new(30.0, 10.0)]);
        figure.add(Mark::Dot { role: Role::Series(1), center: At::new(35.0, 10.0) });
        let image = figure.to_image(2);
        assert_eq!(image.size(), (80, 40));
        let mixed = [0, 1, 2].map(|c| {
            let [paper, ink] = [LIGHT.paper[c], LIGHT.series[0][c]].map(f64::from);
            (paper * (1.0 - theme::RECTANGLE_OPACITY) + ink * theme::RECTANGLE_OPACITY).round() as u8
        });
        assert_eq!([at(&image, 0, 10), at(&image, 19, 29)], [mixed; 2]);
        assert_eq!([at(&image, 20, 20), at(&image, 5, 8), at(&image, 5, 31)], [LIGHT.paper; 3]);
        assert_eq!(at(&image, 50, 20), LIGHT.series[0]);
        assert_eq!(at(&image, 70, 20), LIGHT.series[1]);
    }

    #[test]
    fn text_is_set_and_what_is_outside_is_left_out() {
        let blank = Figure::new("", "", (60.0, 20.0));
        let mut figure = blank.clone();
        figure.text(Role::Text, Anchor::Start, At::new(-500.0, 1e12), "far away");
        assert_eq!(figure.to_image(1), blank.to_image(1));
        figure.text(Role::Text, Anchor::Middle, At::new(30.0, 15.0), "猫 −1");
        let mut same = blank.clone();
        same.text(Role::Text, Anchor::Middle, At::new(30.0, 15.0), "? -1");
        assert_ne!(figure.to_image(2), blank.to_image(2));
        assert_eq!(figure.to_image(2), same.to_image(2));
    }

    #[test]
    fn dashes_have_their_lengths_also_around_corners() {
        let corner = [At::new(0.0, 0.0), At::new(5.0, 0.0), At::new(5.0, 9.0)];
        let cut = dashed(&corner, &[7.0, 3.0]);
        assert_eq!(cut.len(), 2);
        assert_eq!(cut[0], [At::new(0.0, 0.0), At::new(5.0, 0.0), At::new(5.0, 2.0)]);
        assert_eq!(cut[1], [At::new(5.0, 5.0), At::new(5.0, 9.0)]);
    }
}
