//! The report of a training run: one page that needs nothing but itself.

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::axis::{Scale, thousands};
use crate::charts::{Bin, Series, histograms, line_chart, reliability_diagram};
use crate::figure::{Figure, escape};
use crate::theme;

/// All that is told of a training run. Whatever is empty is left out of the page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    pub name: String,
    pub method: String,
    pub detector: String,
    pub iterations_done: u64,
    /// As many as were asked for.
    pub iterations: u64,
    pub outcomes: Vec<RunResult>,
    /// What the numbers say, a sentence each.
    pub facts: Vec<String>,
    pub curves: Curves,
    /// Early, middle and late, or however training is divided.
    pub stretches: Vec<Stretch>,
    /// The images with the surest recovered boxes, the best first.
    pub most_confident: Vec<Picture>,
    /// Those with the least sure of the recovered boxes, the least first.
    pub least_confident: Vec<Picture>,
    pub completion: Vec<ClassCompletion>,
    /// The resolved configuration, as it is in its file.
    pub config: Option<String>,
}

/// A model's average precision on the test images, each from 0 to 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunResult {
    /// The student, the teacher.
    pub model: String,
    pub ap: Option<f64>,
    pub ap50: Option<f64>,
    pub ap75: Option<f64>,
}

/// Values over the iterations, chart by chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curves {
    /// The total and its terms.
    pub losses: Vec<Series>,
    /// Of student and teacher.
    pub average_precision: Vec<Series>,
    /// Annotations, detections, candidates, pseudo labels.
    pub boxes_per_image: Vec<Series>,
    /// Precision and recall of pseudo labels, where hidden annotations tell them.
    pub pseudo_labels: Vec<Series>,
    /// The calibrator's parameters by name.
    pub calibrator: Vec<Series>,
    /// Before and after calibration.
    pub calibration_error: Vec<Series>,
    /// The raw score that a candidate needs.
    pub threshold: Vec<Series>,
}

/// A part of the training.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stretch {
    pub name: String,
    /// Its first iteration and its last.
    pub iterations: (u64, u64),
    /// Judged detections by their raw score.
    pub before: Vec<Bin>,
    /// The same by their calibrated confidence.
    pub after: Vec<Bin>,
    /// How many of all detections have which raw score, in bins of equal width from 0 to 1.
    pub scores: Vec<f64>,
}

/// An image with its boxes drawn: given ones green with their class, recovered ones red with class and
/// confidence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Picture {
    pub jpeg: Vec<u8>,
    pub caption: String,
}

/// The boxes of a class.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClassCompletion {
    pub class: String,
    pub given: u64,
    pub recovered: u64,
    /// The mean confidence of the recovered boxes: the precision that they promise.
    pub confidence: Option<f64>,
}

impl Report {
    /// One HTML file without scripts, which loads nothing: styles, figures and pictures are in it.
    pub fn to_html(&self) -> String {
        let sections: Vec<(&str, &str, String)> = [
            ("curves", "Through the training", self.curves()),
            ("confidence", "Confidence and precision", self.confidence()),
            ("pictures", "Pictures", self.pictures()),
            ("completion", "Recovered boxes", self.completion()),
            ("configuration", "Configuration", self.configuration()),
        ]
        .into_iter()
        .filter(|(_, _, content)| !content.is_empty())
        .collect();

        let name = escape(&self.name);
        let mut page = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
             <meta name=\"color-scheme\" content=\"light dark\"/>\n\
             <title>{name}: training report</title>\n<style>\n{}{}</style>\n</head>\n<body>\n{}",
            theme::style_sheet(),
            include_str!("page.css"),
            self.heading()
        );
        if sections.len() > 1 {
            page.push_str("<nav aria-label=\"Sections\">\n<ul>\n");
            for (id, heading, _) in &sections {
                let _ = writeln!(page, "<li><a href=\"#{id}\">{heading}</a></li>");
            }
            page.push_str("</ul>\n</nav>\n");
        }
        page.push_str("<main>\n");
        for (id, heading, content) in &sections {
            let _ = write!(
                page,
                "<section id=\"{id}\" aria-labelledby=\"{id}-heading\">\n\
                 <h2 id=\"{id}-heading\">{heading}</h2>\n{content}</section>\n"
            );
        }
        if sections.is_empty() {
            page.push_str("<p>Nothing has been recorded of this run yet.</p>\n");
        }
        page.push_str(
            "</main>\n<footer><p>Made by lacuna. This page needs nothing but itself.</p></footer>\n",
        );
        page.push_str("</body>\n</html>\n");
        page
    }

    fn heading(&self) -> String {
        let done = match (self.iterations_done, self.iterations) {
            (done, all) if done == all => thousands(done),
            (done, all) => format!("{} of {}", thousands(done), thousands(all)),
        };
        let mut html = format!(
            "<header>\n<p class=\"kind\">Training report</p>\n<h1>{}</h1>\n<dl>\n",
            escape(&self.name)
        );
        for (term, text) in [("Method", &self.method), ("Detector", &self.detector), ("Iterations", &done)] {
            if !text.is_empty() {
                let _ = writeln!(html, "<div><dt>{term}</dt><dd>{}</dd></div>", escape(text));
            }
        }
        html.push_str("</dl>\n");
        if !self.outcomes.is_empty() || !self.facts.is_empty() {
            html.push_str("<div class=\"summary\">\n");
            html.push_str(&self.outcomes());
            if !self.facts.is_empty() {
                html.push_str("<ul class=\"facts\">\n");
                for fact in &self.facts {
                    let _ = writeln!(html, "<li>{}</li>", escape(fact));
                }
                html.push_str("</ul>\n");
            }
            html.push_str("</div>\n");
        }
        html.push_str("</header>\n");
        html
    }

    fn outcomes(&self) -> String {
        if self.outcomes.is_empty() {
            return String::new();
        }
        let mut html = String::from(
            "<table>\n<caption>Average precision on the test images, %</caption>\n<thead><tr>\
             <th scope=\"col\">Model</th><th scope=\"col\">AP</th><th scope=\"col\">AP50</th>\
             <th scope=\"col\">AP75</th></tr></thead>\n<tbody>\n",
        );
        for RunResult { model, ap, ap50, ap75 } in &self.outcomes {
            let _ = write!(html, "<tr><th scope=\"row\">{}</th>", escape(model));
            for value in [ap, ap50, ap75] {
                let _ = write!(html, "<td>{}</td>", percent(*value));
            }
            html.push_str("</tr>\n");
        }
        html.push_str("</tbody>\n</table>\n");
        html
    }

    fn curves(&self) -> String {
        let Curves {
            losses,
            average_precision,
            boxes_per_image,
            pseudo_labels,
            calibrator,
            calibration_error,
            threshold,
        } = &self.curves;
        let charts = [
            (
                "Losses",
                "loss, by its logarithm",
                Scale::Log,
                losses,
                "What the student is trained to lessen.",
            ),
            (
                "Average precision",
                "AP on the test images",
                Scale::FromZero,
                average_precision,
                "The teacher is the moving average of the student.",
            ),
            (
                "Boxes per image",
                "boxes",
                Scale::FromZero,
                boxes_per_image,
                "Candidates are detections away from every annotation; pseudo labels are detections that the \
                 detector is trained on.",
            ),
            (
                "Pseudo labels",
                "share",
                Scale::Percent,
                pseudo_labels,
                "Against the hidden annotations, which training does not see: how many of the pseudo labels are \
                 right, and how many of the hidden boxes they cover.",
            ),
            (
                "Calibrator",
                "parameters",
                Scale::Fitted,
                calibrator,
                "What turns a raw score into a confidence, refitted as the teacher changes.",
            ),
            (
                "Calibration error",
                "expected calibration error",
                Scale::FromZero,
                calibration_error,
                "Of detections near an annotation: the mean distance of confidence and precision.",
            ),
            (
                "Threshold",
                "raw score",
                Scale::Unit,
                threshold,
                "The raw score that a candidate needs to be a pseudo label.",
            ),
        ];
        let mut html = String::new();
        for (n, (title, y_label, scale, series, note)) in charts.into_iter().enumerate() {
            if !series.is_empty() {
                let figure = line_chart(title, y_label, scale, series);
                html.push_str(&chart(&format!("curve-{n}"), &figure, note));
            }
        }
        within("<div class=\"charts\">\n", html, "</div>\n")
    }

    fn confidence(&self) -> String {
        let title = |stretch: &Stretch| {
            let (first, last) = stretch.iterations;
            format!("{}: iterations {} to {}", stretch.name, thousands(first), thousands(last))
        };
        let mut diagrams = String::new();
        for (n, stretch) in self.stretches.iter().enumerate() {
            if !stretch.before.is_empty() || !stretch.after.is_empty() {
                let series: [(&str, &[Bin]); 2] = [("before", &stretch.before), ("after", &stretch.after)];
                let figure = reliability_diagram(&title(stretch), &series);
                diagrams.push_str(&chart(&format!("reliability-{n}"), &figure, ""));
            }
        }
        let mut html = within(
            "<p>On the diagonal, a detection is right as often as its confidence says; above it more often, \
             below it less often. <em>Before</em> is the raw score, <em>after</em> the calibrated confidence. \
             Only detections near an annotation can be judged so.</p>\n<div class=\"charts\">\n",
            diagrams,
            "</div>\n",
        );
        let scored: Vec<(&str, &[f64])> = self
            .stretches
            .iter()
            .filter(|stretch| !stretch.scores.is_empty())
            .map(|stretch| (stretch.name.as_str(), stretch.scores.as_slice()))
            .collect();
        if !scored.is_empty() {
            let figure = histograms("Raw scores through the training", &scored);
            let note = "Where the histograms differ, a threshold that fits one stretch does not fit another.";
            html.push_str("<div class=\"charts\">\n");
            html.push_str(&chart("scores", &figure, note));
            html.push_str("</div>\n");
        }
        html
    }

    fn pictures(&self) -> String {
        let mut html = String::new();
        for (heading, pictures) in
            [("Most confident first", &self.most_confident), ("Least confident first", &self.least_confident)]
        {
            if pictures.is_empty() {
                continue;
            }
            let _ = write!(html, "<h3>{heading}</h3>\n<ul class=\"gallery\">\n");
            for Picture { jpeg, caption } in pictures {
                let caption = escape(caption);
                let _ = writeln!(
                    html,
                    "<li><figure><img loading=\"lazy\" decoding=\"async\" alt=\"Given and recovered boxes: \
                     {caption}\" src=\"data:image/jpeg;base64,{}\"/><figcaption>{caption}</figcaption>\
                     </figure></li>",
                    BASE64.encode(jpeg)
                );
            }
            html.push_str("</ul>\n");
        }
        let key = "<ul class=\"key\">\n\
                   <li><span class=\"given\">class</span> given: green, labeled with the class alone</li>\n\
                   <li><span class=\"recovered\">class 0.87</span> recovered: red, labeled with class and \
                   confidence</li>\n</ul>\n";
        within(key, html, "")
    }

    fn completion(&self) -> String {
        if self.completion.is_empty() {
            return String::new();
        }
        let mut html = String::from(
            "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-labelledby=\"completion-heading\">\n<table>\n\
             <thead><tr><th scope=\"col\">Class</th><th scope=\"col\">Given</th><th scope=\"col\">Recovered</th>\
             <th scope=\"col\">Mean confidence, %</th></tr></thead>\n<tbody>\n",
        );
        let row = |html: &mut String, name: &str, given: u64, recovered: u64, confidence: Option<f64>| {
            let _ = writeln!(
                html,
                "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td></tr>",
                escape(name),
                thousands(given),
                thousands(recovered),
                percent(confidence)
            );
        };
        let [mut given, mut recovered] = [0u64; 2];
        for class in &self.completion {
            row(&mut html, &class.class, class.given, class.recovered, class.confidence);
            given = given.saturating_add(class.given);
            recovered = recovered.saturating_add(class.recovered);
        }
        html.push_str("</tbody>\n<tfoot>\n");
        // The mean of all boxes is known only when that of every class with boxes is.
        let sum = self.completion.iter().filter(|class| class.recovered > 0);
        let sum: Option<f64> = sum.map(|class| Some(class.confidence? * class.recovered as f64)).sum();
        row(
            &mut html,
            "All",
            given,
            recovered,
            sum.filter(|_| recovered > 0).map(|sum| sum / recovered as f64),
        );
        html.push_str("</tfoot>\n</table>\n</div>\n");
        html
    }

    fn configuration(&self) -> String {
        let Some(config) = &self.config else { return String::new() };
        format!(
            "<details>\n<summary>All values that the run was made with</summary>\n<pre><code>{}</code></pre>\n\
             </details>\n",
            escape(config)
        )
    }
}

/// A figure of the page, with a sentence below on how to read it.
fn chart(id: &str, figure: &Figure, note: &str) -> String {
    let note = if note.is_empty() { String::new() } else { format!("<figcaption>{note}</figcaption>\n") };
    format!("<figure class=\"chart\">\n{}{note}</figure>\n", figure.to_element(id))
}

/// Content between two texts; nothing without content.
fn within(before: &str, content: String, after: &str) -> String {
    if content.is_empty() { content } else { format!("{before}{content}{after}") }
}

/// A share in per cent with one decimal; a dash when it is not known.
fn percent(share: Option<f64>) -> String {
    match share.filter(|share| share.is_finite()) {
        Some(share) => format!("{:.1}", 100.0 * share),
        None => "–".into(),
    }
}
