//! The style of each role: colors, dashes and widths.

use std::fmt::Write;

use crate::figure::Role;

/// The number of different styles of series.
pub(crate) const N_SERIES: usize = 6;

/// The colors of a figure on light or on dark paper.
pub(crate) struct Theme {
    pub(crate) paper: [u8; 3],
    pub(crate) text: [u8; 3],
    /// Of tick labels and legends.
    pub(crate) muted: [u8; 3],
    pub(crate) axis: [u8; 3],
    pub(crate) grid: [u8; 3],
    /// Based on the palette of Okabe and Ito (2008) and moved further apart. Any two differ with every kind of
    /// color blindness, and each has a contrast of at least 3 to 1 with the paper.
    pub(crate) series: [[u8; 3]; N_SERIES],
}

/// Colors on light paper.
pub(crate) const LIGHT: Theme = Theme {
    paper: [0xff, 0xff, 0xff],
    text: [0x1d, 0x23, 0x2a],
    muted: [0x54, 0x5e, 0x6a],
    axis: [0x8a, 0x94, 0xa0],
    grid: [0xe4, 0xe8, 0xec],
    series: [
        [0x15, 0x49, 0xbc],
        [0xe0, 0x74, 0x05],
        [0x0e, 0xa5, 0x7a],
        [0x92, 0x6f, 0xa8],
        [0x82, 0x42, 0x1e],
        [0x39, 0x2d, 0x3b],
    ],
};

/// Colors on dark paper.
pub(crate) const DARK: Theme = Theme {
    paper: [0x1b, 0x1f, 0x24],
    text: [0xe8, 0xea, 0xed],
    muted: [0xa9, 0xb2, 0xbc],
    axis: [0x6c, 0x76, 0x82],
    grid: [0x31, 0x37, 0x3e],
    series: [
        [0x5c, 0x92, 0xfb],
        [0xde, 0x67, 0x26],
        [0x20, 0xe7, 0x82],
        [0xbe, 0x73, 0xae],
        [0xef, 0xd6, 0x1b],
        [0xce, 0xe0, 0xda],
    ],
};

/// The opacity of areas.
pub(crate) const AREA_OPACITY: f64 = 0.16;
/// The opacity of rectangles.
pub(crate) const RECTANGLE_OPACITY: f64 = 0.72;
pub(crate) const DOT_RADIUS: f64 = 3.0;

impl Theme {
    pub(crate) fn color(&self, role: Role) -> [u8; 3] {
        match role {
            Role::Title => self.text,
            Role::Text => self.muted,
            Role::Axis | Role::Reference => self.axis,
            Role::Grid => self.grid,
            Role::Series(n) => self.series[n % N_SERIES],
        }
    }

    /// Write the CSS rules for fill and stroke of every class of marks.
    fn rules(&self, css: &mut String) {
        let mut rule = |class: &str, text: bool, role: Role| {
            let color = hex(self.color(role));
            let fill = if text { format!("text{class}") } else { format!(".fill{class}") };
            let _ = writeln!(css, "svg.figure {fill}{{fill:{color}}}");
            if !text {
                let _ = writeln!(css, "svg.figure .line{class}{{stroke:{color}}}");
            }
        };
        rule(".title", true, Role::Title);
        rule(".text", true, Role::Text);
        for role in
            [Role::Axis, Role::Reference, Role::Grid].into_iter().chain((0..N_SERIES).map(Role::Series))
        {
            rule(&format!(".{}", class_name(role)), false, role);
        }
        let _ = writeln!(css, "svg.figure .paper{{fill:{}}}", hex(self.paper));
    }
}

/// The width of a line.
pub(crate) fn line_width(role: Role) -> f64 {
    match role {
        Role::Series(_) => 2.0,
        _ => 1.0,
    }
}

/// The lengths of dashes and gaps; empty for a solid line. They keep series distinguishable without color.
pub(crate) fn dash_pattern(role: Role) -> &'static [f64] {
    const SERIES: [&[f64]; N_SERIES] =
        [&[], &[7.0, 3.0], &[2.0, 3.0], &[9.0, 3.0, 2.0, 3.0], &[12.0, 4.0], &[4.0, 4.0]];
    match role {
        Role::Series(n) => SERIES[n % N_SERIES],
        Role::Reference => &[4.0, 4.0],
        Role::Title | Role::Text | Role::Axis | Role::Grid => &[],
    }
}

/// The CSS class of a role.
pub(crate) fn class_name(role: Role) -> String {
    match role {
        Role::Title => "title".into(),
        Role::Text => "text".into(),
        Role::Axis => "axis".into(),
        Role::Grid => "grid".into(),
        Role::Reference => "reference".into(),
        Role::Series(n) => format!("s{}", n % N_SERIES + 1),
    }
}

const FONT: &str = "system-ui,-apple-system,'Segoe UI','Liberation Sans',Arial,sans-serif";

/// The style sheet of all figures. It has no CSS variables, because many SVG viewers do not support them.
pub(crate) fn style_sheet() -> String {
    let mut css = format!(
        "svg.figure text{{font-family:{FONT};font-size:12px}}\n\
         svg.figure text.title{{font-size:14px;font-weight:600}}\n\
         svg.figure .line{{fill:none;stroke-linejoin:round;stroke-width:1}}\n\
         svg.figure .area{{fill-opacity:{AREA_OPACITY}}}\n\
         svg.figure .rectangle{{fill-opacity:{RECTANGLE_OPACITY}}}\n"
    );
    for role in [Role::Reference].into_iter().chain((0..N_SERIES).map(Role::Series)) {
        let dashes: Vec<String> = dash_pattern(role).iter().map(f64::to_string).collect();
        let dashes = if dashes.is_empty() { "none".into() } else { dashes.join(" ") };
        let (class, width) = (class_name(role), line_width(role));
        let _ = writeln!(css, "svg.figure .line.{class}{{stroke-width:{width};stroke-dasharray:{dashes}}}");
    }
    LIGHT.rules(&mut css);
    css.push_str("@media screen and (prefers-color-scheme:dark){\n");
    DARK.rules(&mut css);
    css.push_str("}\n");
    css
}

pub(crate) fn hex([r, g, b]: [u8; 3]) -> String {
    format!("#{r:02x}{g:02x}{b:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without the curve that screens have.
    fn linear(color: [u8; 3]) -> [f64; 3] {
        color.map(|c| {
            let c = f64::from(c) / 255.0;
            if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
        })
    }

    fn times(matrix: [[f64; 3]; 3], v: [f64; 3]) -> [f64; 3] {
        matrix.map(|row| row.iter().zip(v).map(|(a, b)| a * b).sum())
    }

    /// The contrast of two colors (Web Content Accessibility Guidelines 2.1).
    fn contrast(a: [u8; 3], b: [u8; 3]) -> f64 {
        let [a, b] = [a, b].map(|color| {
            let [r, g, b] = linear(color);
            0.2126 * r + 0.7152 * g + 0.0722 * b
        });
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    /// CIELAB under daylight (D65).
    fn lab(linear: [f64; 3]) -> [f64; 3] {
        const XYZ: [[f64; 3]; 3] =
            [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]];
        let [x, y, z] = times(XYZ, linear.map(|c| c.clamp(0.0, 1.0)));
        let [x, y, z] = [x / 0.95047, y, z / 1.08883]
            .map(|t| if t > 0.008856 { t.cbrt() } else { 7.787 * t + 16.0 / 116.0 });
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    #[test]
    fn any_two_series_differ_for_every_kind_of_color_vision() {
        // Machado, Oliveira and Fernandes (2009), severity 1: without long, middle, short cones; and with all.
        const SEEN: [[[f64; 3]; 3]; 4] = [
            [
                [0.152286, 1.052583, -0.204868],
                [0.114503, 0.786281, 0.099216],
                [-0.003882, -0.048116, 1.051998],
            ],
            [
                [0.367322, 0.860646, -0.227968],
                [0.280085, 0.672501, 0.047413],
                [-0.011820, 0.042940, 0.968881],
            ],
            [
                [1.255528, -0.076749, -0.178779],
                [-0.078411, 0.930809, 0.147602],
                [0.004733, 0.691367, 0.303900],
            ],
            [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
        ];
        for theme in [LIGHT, DARK] {
            for seen in SEEN {
                let places = theme.series.map(|color| lab(times(seen, linear(color))));
                for a in 0..N_SERIES {
                    for b in 0..a {
                        let squares = (0..3).map(|c| (places[a][c] - places[b][c]).powi(2));
                        // Side by side, a distance of about 2 is seen; these are thin and apart.
                        assert!(squares.sum::<f64>().sqrt() > 30.0, "{a} and {b} by {seen:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn text_and_series_stand_out_from_the_paper() {
        for theme in [LIGHT, DARK] {
            assert!(contrast(theme.text, theme.paper) >= 7.0);
            assert!(contrast(theme.muted, theme.paper) >= 4.5);
            for color in theme.series {
                assert!(contrast(color, theme.paper) >= 3.0, "{color:?}");
            }
        }
    }

    #[test]
    fn each_series_has_a_color_and_dashes_of_its_own() {
        for a in 0..N_SERIES {
            for b in 0..a {
                assert_ne!(dash_pattern(Role::Series(a)), dash_pattern(Role::Series(b)));
                for theme in [LIGHT, DARK] {
                    assert_ne!(theme.series[a], theme.series[b]);
                }
            }
        }
        assert_eq!(class_name(Role::Series(N_SERIES)), class_name(Role::Series(0)));
    }
}
