//! The report of a training run: one self-contained HTML page.

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::axis::{Scale, thousands};
use crate::charts::{Bin, Series, histograms, line_chart, reliability_diagram};
use crate::figure::{Figure, escape};
use crate::theme;

/// The contents of a report. Whatever is empty is left out of the page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The name of the run.
    pub name: String,
    /// The training method.
    pub method: String,
    /// The detector.
    pub detector: String,
    /// The iterations done so far.
    pub iterations_done: u64,
    /// All iterations of the run.
    pub iterations: u64,
    /// The average precision of each model.
    pub results: Vec<RunResult>,
    /// The main findings, one sentence each.
    pub facts: Vec<String>,
    /// Values over the iterations.
    pub curves: Curves,
    /// The stages of the training, such as early, middle and late.
    pub stages: Vec<TrainingStage>,
    /// Images with the most confident recovered boxes, the most confident first.
    pub most_confident: Vec<Picture>,
    /// Images with the least confident recovered boxes, the least confident first.
    pub least_confident: Vec<Picture>,
    /// Given and recovered boxes of each class.
    pub completion: Vec<ClassCompletion>,
    /// The text of the resolved configuration.
    pub config: Option<String>,
}

/// The average precision of a model on the test images, from 0 to 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunResult {
    /// The name of the model, such as student or teacher.
    pub model: String,
    /// Average precision over the IoU thresholds 0.5 to 0.95.
    pub ap: Option<f64>,
    /// Average precision at an IoU of 0.5.
    pub ap50: Option<f64>,
    /// Average precision at an IoU of 0.75.
    pub ap75: Option<f64>,
}

/// Values over the iterations, one chart for each field.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curves {
    /// The total loss and its terms.
    pub losses: Vec<Series>,
    /// Average precision of student and teacher.
    pub average_precision: Vec<Series>,
    /// Annotations, detections, candidates, pseudo labels.
    pub boxes_per_image: Vec<Series>,
    /// Precision and recall of pseudo labels, if the hidden annotations are known.
    pub pseudo_labels: Vec<Series>,
    /// The calibrator's parameters by name.
    pub calibrator: Vec<Series>,
    /// Calibration error before and after calibration.
    pub calibration_error: Vec<Series>,
    /// The raw score at which a candidate becomes a pseudo label.
    pub threshold: Vec<Series>,
}

/// A stage of the training.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainingStage {
    /// The name, such as early.
    pub name: String,
    /// The first and the last iteration.
    pub iterations: (u64, u64),
    /// Judged detections, binned by raw score.
    pub before: Vec<Bin>,
    /// Judged detections, binned by calibrated confidence.
    pub after: Vec<Bin>,
    /// A histogram of the raw scores of all detections, in bins of equal width from 0 to 1.
    pub scores: Vec<f64>,
}

/// An image with its boxes drawn: given boxes in green with their class, recovered boxes in red with class and
/// confidence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Picture {
    /// The bytes of a JPEG file.
    pub jpeg: Vec<u8>,
    /// The caption.
    pub caption: String,
}

/// The given and recovered boxes of a class.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClassCompletion {
    /// The name of the class.
    pub class: String,
    /// The number of given boxes.
    pub given: u64,
    /// The number of recovered boxes.
    pub recovered: u64,
    /// The mean confidence of the recovered boxes: the precision that they promise.
    pub confidence: Option<f64>,
}

impl Report {
    /// The report as one HTML file. Styles, figures and pictures are embedded; it has no scripts and loads nothing.
    pub fn to_html(&self) -> String {
        let sections: Vec<(&str, &str, String)> = [
            ("curves", "Training curves", self.curves()),
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
            page.push_str("<p>Nothing has been recorded for this run yet.</p>\n");
        }
        page.push_str(
            "</main>\n<footer><p>Made by lacuna. This page is self-contained: it loads nothing.</p></footer>\n",
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
        if !self.results.is_empty() || !self.facts.is_empty() {
            html.push_str("<div class=\"summary\">\n");
            html.push_str(&self.results());
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

    fn results(&self) -> String {
        if self.results.is_empty() {
            return String::new();
        }
        let mut html = String::from(
            "<table>\n<caption>Average precision on the test images, %</caption>\n<thead><tr>\
             <th scope=\"col\">Model</th><th scope=\"col\">AP</th><th scope=\"col\">AP50</th>\
             <th scope=\"col\">AP75</th></tr></thead>\n<tbody>\n",
        );
        for RunResult { model, ap, ap50, ap75 } in &self.results {
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
                "loss, logarithmic",
                Scale::Log,
                losses,
                "The loss that training minimizes, and its terms.",
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
                "Candidates are detections away from all annotations; pseudo labels are the candidates that the \
                 student is trained on.",
            ),
            (
                "Pseudo labels",
                "share",
                Scale::Percent,
                pseudo_labels,
                "Compared with the hidden annotations, which are not used in training: precision is the share of the \
                 pseudo labels that are right, recall the share of the hidden boxes that they match.",
            ),
            (
                "Calibrator",
                "parameters",
                Scale::Fitted,
                calibrator,
                "The parameters of the calibrator, which turns raw scores into confidences and is refitted during \
                 training.",
            ),
            (
                "Calibration error",
                "expected calibration error",
                Scale::FromZero,
                calibration_error,
                "The mean difference between confidence and precision, of detections near an annotation.",
            ),
            (
                "Threshold",
                "raw score",
                Scale::Unit,
                threshold,
                "The raw score at which a candidate becomes a pseudo label.",
            ),
        ];
        let mut html = String::new();
        for (n, (title, y_label, scale, series, note)) in charts.into_iter().enumerate() {
            if !series.is_empty() {
                let figure = line_chart(title, y_label, scale, series);
                html.push_str(&chart(&format!("curve-{n}"), &figure, note));
            }
        }
        wrap("<div class=\"charts\">\n", html, "</div>\n")
    }

    fn confidence(&self) -> String {
        let title = |stage: &TrainingStage| {
            let (first, last) = stage.iterations;
            format!("{}: iterations {} to {}", stage.name, thousands(first), thousands(last))
        };
        let mut diagrams = String::new();
        for (n, stage) in self.stages.iter().enumerate() {
            if !stage.before.is_empty() || !stage.after.is_empty() {
                let series: [(&str, &[Bin]); 2] = [("before", &stage.before), ("after", &stage.after)];
                let figure = reliability_diagram(&title(stage), &series);
                diagrams.push_str(&chart(&format!("reliability-{n}"), &figure, ""));
            }
        }
        let mut html = wrap(
            "<p>On the diagonal, precision equals confidence; above it, confidences are too low, below it, too high. \
             <em>Before</em> is the raw score, <em>after</em> the calibrated confidence. Only detections near an \
             annotation are judged.</p>\n<div class=\"charts\">\n",
            diagrams,
            "</div>\n",
        );
        let scored: Vec<(&str, &[f64])> = self
            .stages
            .iter()
            .filter(|stage| !stage.scores.is_empty())
            .map(|stage| (stage.name.as_str(), stage.scores.as_slice()))
            .collect();
        if !scored.is_empty() {
            let figure = histograms("Raw scores during training", &scored);
            let note = "If the histograms differ, no single score threshold fits the whole training.";
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
                   <li><span class=\"given\">class</span> given boxes: green, labeled with the class</li>\n\
                   <li><span class=\"recovered\">class 0.87</span> recovered boxes: red, labeled with class and \
                   confidence</li>\n</ul>\n";
        wrap(key, html, "")
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
        // The mean of all boxes is known only if it is known for every class with recovered boxes.
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
            "<details>\n<summary>All values of the configuration</summary>\n<pre><code>{}</code></pre>\n\
             </details>\n",
            escape(config)
        )
    }
}

/// A figure of the page, with a note on how to read it.
fn chart(id: &str, figure: &Figure, note: &str) -> String {
    let note = if note.is_empty() { String::new() } else { format!("<figcaption>{note}</figcaption>\n") };
    format!("<figure class=\"chart\">\n{}{note}</figure>\n", figure.to_element(id))
}

/// Put content between two texts; empty content stays empty.
fn wrap(before: &str, content: String, after: &str) -> String {
    if content.is_empty() { content } else { format!("{before}{content}{after}") }
}

/// A share in percent with one decimal; a dash if it is not known.
fn percent(share: Option<f64>) -> String {
    match share.filter(|share| share.is_finite()) {
        Some(share) => format!("{:.1}", 100.0 * share),
        None => "–".into(),
    }
}
