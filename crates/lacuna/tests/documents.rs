//! The words that users read: every console block of README and docs, and the help of every command.
//!
//! Blocks that start with ```` ```console ```` are run in order, in one folder per document that starts with the files
//! of `fixtures/documents`. `[..]` stands for any text within a line and `...` for any lines. What needs training is in
//! blocks of another kind.
//!
//! `SNAPSHOTS=overwrite cargo test -p lacuna-cv --test documents` writes the help texts anew.

#![allow(clippy::unwrap_used)] // the allowance for tests does not reach their helpers

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use snapbox::{assert_data_eq, file};

fn lacuna() -> Command {
    Command::new(env!("CARGO_BIN_EXE_lacuna"))
}

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A command of a console block, the line that it stands on, and what it prints.
#[derive(Debug, PartialEq)]
struct Session {
    line: usize,
    command: String,
    output: String,
}

/// The commands of a document's console blocks, in order.
fn sessions(document: &str) -> Vec<Session> {
    let mut sessions: Vec<Session> = Vec::new();
    let mut in_console = false;
    for (index, line) in document.lines().enumerate() {
        match line.strip_prefix("$ ") {
            _ if line.starts_with("```") => in_console = !in_console && line == "```console",
            _ if !in_console => {}
            Some(command) => {
                let (line, output) = (index + 1, String::new());
                sessions.push(Session { line, command: command.to_owned(), output });
            }
            None => {
                let session = sessions.last_mut().expect("a console block begins with a command");
                match session.command.strip_suffix('\\') {
                    Some(begun) if session.output.is_empty() => {
                        session.command = format!("{begun}{}", line.trim_start());
                    }
                    _ => session.output += &format!("{line}\n"),
                }
            }
        }
    }
    sessions
}

#[test]
fn commands_and_their_output_are_told_apart() {
    let document = "```\n$ not run\n```\n```console\n$ lacuna a \\\n    b\nx\n\n$ lacuna c\n```\n";
    let session =
        |line, command: &str, output: &str| Session { line, command: command.into(), output: output.into() };
    assert_eq!(sessions(document), [session(5, "lacuna a b", "x\n\n"), session(9, "lacuna c", "")]);
}

#[test]
fn console_blocks_print_what_documents_say() {
    let docs = fs::read_dir(project().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut documents: Vec<PathBuf> =
        docs.filter(|path| path.extension().is_some_and(|e| e == "md")).collect();
    documents.sort();
    documents.insert(0, project().join("README.md"));
    let mut commands = 0;
    for path in documents {
        let sessions = sessions(&fs::read_to_string(&path).unwrap());
        commands += sessions.len();
        check(&path, &sessions);
    }
    assert!(commands >= 9, "only {commands} commands were found");
}

fn check(document: &Path, sessions: &[Session]) {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(project().join("fixtures/documents")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    for Session { line, command, output } in sessions {
        let mut words = command.split_whitespace();
        assert_eq!(words.next(), Some("lacuna"), "{}:{line}: only lacuna is run", document.display());
        let ran = lacuna().current_dir(folder.path()).args(words).output().unwrap();
        let printed = [ran.stderr, ran.stdout].concat();
        let printed = format!("{}:{line}\n{}", document.display(), String::from_utf8(printed).unwrap());
        assert_data_eq!(printed, format!("{}:{line}\n{output}", document.display()));
    }
}

#[test]
fn help_is_as_reviewed() {
    let commands = [
        "demo",
        "synth",
        "inspect",
        "convert",
        "sparsify",
        "train",
        "import",
        "predict",
        "eval",
        "calibrate",
        "complete",
        "report",
    ];
    let overview = String::from_utf8(lacuna().arg("--help").output().unwrap().stdout).unwrap();
    assert_data_eq!(overview.as_str(), file!["help/lacuna.txt"]);
    for line in
        overview.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty())
    {
        let name = line.split_whitespace().next().unwrap();
        assert!(name == "help" || commands.contains(&name), "{name} is not tested");
    }
    for command in commands {
        let output = lacuna().args([command, "--help"]).output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/help/{command}.txt"));
        assert_data_eq!(help, snapbox::Data::read_from(&path, None));
    }
}
