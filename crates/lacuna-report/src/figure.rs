//! Figures: a few kinds of marks in a view box, written as SVG.

use std::fmt::Write;

use crate::theme;

/// A point in a figure: x to the right, y downwards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// From the left.
    pub x: f64,
    /// From the top.
    pub y: f64,
}

impl Point {
    /// The point `(x, y)`.
    pub fn new(x: f64, y: f64) -> Self {
        Self { x, y }
    }
}

/// The purpose of a mark. It determines color, width and dashes, on light and on dark paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A title.
    Title,
    /// A label or an entry of a legend.
    Text,
    /// An axis.
    Axis,
    /// A grid line.
    Grid,
    /// A line that the data is compared with.
    Reference,
    /// A series of data, counted from 0. There are six styles; a seventh series looks like the first.
    Series(usize),
}

/// Which part of a text is at its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// The start.
    Start,
    /// The middle.
    Middle,
    /// The end.
    End,
}

/// An element of a figure.
#[derive(Clone, Debug, PartialEq)]
pub enum Mark {
    /// A line through all points.
    Line {
        /// The purpose.
        role: Role,
        /// The points in order.
        points: Vec<Point>,
    },
    /// A tinted polygon.
    Area {
        /// The purpose.
        role: Role,
        /// The corners in order.
        points: Vec<Point>,
    },
    /// A filled rectangle.
    Rectangle {
        /// The purpose.
        role: Role,
        /// Two opposite corners.
        corners: [Point; 2],
    },
    /// A filled circle.
    Dot {
        /// The purpose.
        role: Role,
        /// The center.
        center: Point,
    },
    /// One line of text.
    Text {
        /// The purpose.
        role: Role,
        /// Which part of the text is at `at`.
        anchor: Anchor,
        /// A point on the baseline.
        at: Point,
        /// The text, not escaped.
        text: String,
    },
}

impl Mark {
    /// The purpose of the mark.
    pub fn role(&self) -> Role {
        let (Self::Line { role, .. }
        | Self::Area { role, .. }
        | Self::Rectangle { role, .. }
        | Self::Dot { role, .. }
        | Self::Text { role, .. }) = self;
        *role
    }

    fn points(&self) -> &[Point] {
        match self {
            Self::Line { points, .. } | Self::Area { points, .. } => points,
            Self::Rectangle { corners, .. } => corners,
            Self::Dot { center: at, .. } | Self::Text { at, .. } => std::slice::from_ref(at),
        }
    }
}

/// A figure: marks in a view box, each over those before it, and a description in words for screen readers.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    title: String,
    description: String,
    width: f64,
    height: f64,
    marks: Vec<Mark>,
}

impl Figure {
    /// An empty figure of this width and height.
    ///
    /// # Panics
    /// When a side is not between 1 and 10,000.
    pub fn new(title: &str, description: &str, (width, height): (f64, f64)) -> Self {
        assert!([width, height].iter().all(|side| (1.0..=1e4).contains(side)), "{width} x {height}");
        Self { title: title.into(), description: description.into(), width, height, marks: Vec::new() }
    }

    /// The title.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// The description in words.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Width and height.
    pub fn size(&self) -> (f64, f64) {
        (self.width, self.height)
    }

    /// The marks, the backmost first.
    pub fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// Add a mark over the others, unless one of its points is not finite.
    pub fn add(&mut self, mark: Mark) {
        let points = mark.points();
        if !points.is_empty() && points.iter().all(|at| at.x.is_finite() && at.y.is_finite()) {
            self.marks.push(mark);
        }
    }

    pub(crate) fn grow(&mut self, height: f64) {
        self.height += height;
    }

    pub(crate) fn line(&mut self, role: Role, points: impl IntoIterator<Item = Point>) {
        self.add(Mark::Line { role, points: points.into_iter().collect() });
    }

    pub(crate) fn text(&mut self, role: Role, anchor: Anchor, at: Point, text: impl Into<String>) {
        self.add(Mark::Text { role, anchor, at, text: text.into() });
    }

    /// The figure as an SVG file, light or dark as the viewer prefers.
    pub fn to_svg(&self) -> String {
        let style = format!("<style>\n{}</style>\n", theme::style_sheet());
        self.svg("figure", " xmlns=\"http://www.w3.org/2000/svg\"", &style)
    }

    /// The figure as an element of a page whose styles include [`theme::style_sheet`]. Ids begin with `id`.
    pub(crate) fn to_element(&self, id: &str) -> String {
        self.svg(id, "", "")
    }

    fn svg(&self, id: &str, namespace: &str, style: &str) -> String {
        let (width, height) = (number(self.width), number(self.height));
        let mut svg = format!(
            "<svg{namespace} class=\"figure\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\" aria-labelledby=\"{id}-title {id}-desc\">\n\
             <title id=\"{id}-title\">{}</title>\n<desc id=\"{id}-desc\">{}</desc>\n{style}\
             <rect class=\"paper\" width=\"{width}\" height=\"{height}\"/>\n",
            escape(&self.title),
            escape(&self.description)
        );
        for mark in &self.marks {
            write_mark(&mut svg, mark);
            svg.push('\n');
        }
        svg.push_str("</svg>\n");
        svg
    }
}

fn write_mark(svg: &mut String, mark: &Mark) {
    let class = theme::class_name(mark.role());
    let list = |points: &[Point]| {
        let points = points.iter().map(|at| format!("{},{}", number(at.x), number(at.y)));
        points.collect::<Vec<_>>().join(" ")
    };
    let _ = match mark {
        Mark::Line { points, .. } => {
            write!(svg, "<polyline class=\"line {class}\" points=\"{}\"/>", list(points))
        }
        Mark::Area { points, .. } => {
            write!(svg, "<polygon class=\"fill area {class}\" points=\"{}\"/>", list(points))
        }
        Mark::Rectangle { corners: [a, b], .. } => write!(
            svg,
            "<rect class=\"fill rectangle {class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>",
            number(a.x.min(b.x)),
            number(a.y.min(b.y)),
            number((a.x - b.x).abs()),
            number((a.y - b.y).abs())
        ),
        Mark::Dot { center, .. } => write!(
            svg,
            "<circle class=\"fill {class}\" cx=\"{}\" cy=\"{}\" r=\"{}\"/>",
            number(center.x),
            number(center.y),
            theme::DOT_RADIUS
        ),
        Mark::Text { anchor, at, text, .. } => {
            let anchor = match anchor {
                Anchor::Start => "start",
                Anchor::Middle => "middle",
                Anchor::End => "end",
            };
            write!(
                svg,
                "<text class=\"{class}\" x=\"{}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
                number(at.x),
                number(at.y),
                escape(text)
            )
        }
    };
}

/// To a hundredth, without zeros at its end.
fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".into() } else { text.into() }
}

/// Text as it stands in XML and HTML, in elements and in attributes. Control characters, which XML cannot
/// hold in any form, are seen as the replacement character.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(c),
            '\u{fffe}' | '\u{ffff}' => escaped.push(char::REPLACEMENT_CHARACTER),
            c if c.is_control() => escaped.push(char::REPLACEMENT_CHARACTER),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mark_is_an_element() {
        let mut figure = Figure::new("<a> & \"b\"", "it's\u{0}", (100.0, 50.0));
        let [a, b] = [Point::new(0.0, 1.0 / 3.0), Point::new(10.0, -0.001)];
        figure.line(Role::Axis, [a, b]);
        figure.add(Mark::Area { role: Role::Series(0), points: vec![a, b, Point::new(3.0, 3.0)] });
        figure.add(Mark::Rectangle { role: Role::Series(1), corners: [b, a] });
        figure.add(Mark::Dot { role: Role::Series(7), center: b });
        figure.text(Role::Text, Anchor::End, a, "<&>");
        let svg = figure.to_svg();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let elements = document.root_element().children().filter(roxmltree::Node::is_element);
        let names: Vec<&str> = elements.map(|node| node.tag_name().name()).collect();
        assert_eq!(
            names,
            ["title", "desc", "style", "rect", "polyline", "polygon", "rect", "circle", "text"]
        );
        assert!(svg.contains("points=\"0,0.33 10,0\""));
        assert!(svg.contains("<title id=\"figure-title\">&lt;a&gt; &amp; &quot;b&quot;</title>"));
        let text =
            document.descendants().find(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "text")));
        assert_eq!(text.unwrap().text(), Some("<&>"));
    }

    #[test]
    fn what_is_nowhere_is_not_added() {
        let mut figure = Figure::new("", "", (10.0, 10.0));
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            figure.add(Mark::Dot { role: Role::Axis, center: Point::new(bad, 0.0) });
            figure.line(Role::Axis, [Point::new(0.0, 0.0), Point::new(1.0, bad)]);
        }
        figure.line(Role::Axis, []);
        assert!(figure.marks().is_empty());
    }
}
