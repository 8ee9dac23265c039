//! A page of commands and their answers: its sections, the steps of each, and the expected answers.
//!
//! A step is a line `$ command` in a block of ` ```console
//! `, and the lines below it are the command's answer. There `…` stands for any characters, and a line with only `…`
//! for any number of lines.

use crate::Outcome;

/// Stands for text that is not compared.
const ANYTHING: &str = "…";
const BEGIN: &str = "```console";
const END: &str = "```";
const PROMPT: &str = "$ ";

/// A command and its answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) command: String,
    pub(super) answer: Vec<String>,
    /// The numbers of the answer's lines in the page, from 0: the first, and the one behind the last.
    pub(super) lines: (usize, usize),
}

/// The text below one heading.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) title: String,
    pub(super) steps: Vec<Step>,
}

/// The sections of a page that have steps.
pub(super) fn sections(page: &str) -> Outcome<Vec<Section>> {
    let mut sections: Vec<Section> = Vec::new();
    let mut is_console = false;
    for (number, line) in page.lines().enumerate() {
        if line == BEGIN {
            is_console = true;
        } else if line == END {
            is_console = false;
        } else if !is_console {
            if let Some(title) = line.strip_prefix("## ") {
                sections.push(Section { title: title.to_owned(), steps: Vec::new() });
            }
        } else {
            let section = sections.last_mut().ok_or("a command above the first heading")?;
            let lines = (number + 1, number + 1);
            if let Some(command) = line.strip_prefix(PROMPT) {
                let command = command.to_owned();
                section.steps.push(Step { command, answer: Vec::new(), lines });
            } else {
                let step = section.steps.last_mut().ok_or("an answer above the first command")?;
                step.answer.push(line.to_owned());
                step.lines.1 = number + 1;
            }
        }
    }
    sections.retain(|section| !section.steps.is_empty());
    if sections.is_empty() { Err("a page without a command".into()) } else { Ok(sections) }
}

/// The page with these answers in place of those of its steps; lines as in [`Step::lines`], in order.
pub(super) fn with_answers(page: &str, answers: &[((usize, usize), Vec<String>)]) -> String {
    let lines: Vec<&str> = page.lines().collect();
    let (mut text, mut next) = (String::new(), 0);
    for ((first, behind), answer) in answers {
        let kept = lines.get(next..*first).unwrap_or_default().iter().copied();
        for line in kept.chain(answer.iter().map(String::as_str)) {
            text.extend([line, "\n"]);
        }
        next = *behind;
    }
    lines.get(next..).unwrap_or_default().iter().for_each(|line| text.extend([*line, "\n"]));
    text
}

/// True if these lines match those of a page, where `…` stands for anything.
pub(super) fn is_answer(expected: &[String], lines: &[String]) -> bool {
    match (expected, lines) {
        ([], []) => true,
        ([first, rest @ ..], _) if first == ANYTHING => {
            is_answer(rest, lines)
                || lines.split_first().is_some_and(|(_, lines)| is_answer(expected, lines))
        }
        ([first, rest @ ..], [line, lines @ ..]) => is_line(first, line) && is_answer(rest, lines),
        _ => false,
    }
}

fn is_line(expected: &str, line: &str) -> bool {
    let Some((before, rest)) = expected.split_once(ANYTHING) else {
        return expected == line;
    };
    let Some(line) = line.strip_prefix(before) else {
        return false;
    };
    let mut tails = line.char_indices().map(|(at, _)| at).chain([line.len()]);
    tails.any(|at| line.get(at..).is_some_and(|tail| is_line(rest, tail)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# A page\n\n    $ no step\n\n## None\n\n## Some\n\n```console\n$ a b\nc\nd…\n$ e\n```\n\nBetween.\n\n\
        ```console\n$ f\n…\n```\nEnd.\n";

    fn lines(text: &str) -> Vec<String> {
        text.split_terminator('|').map(str::to_owned).collect()
    }

    #[test]
    fn steps_are_read_and_answers_written() {
        let sections = sections(PAGE).unwrap();
        assert_eq!(sections.len(), 1);
        let steps: Vec<_> =
            sections[0].steps.iter().map(|it| (&*it.command, it.answer.len())).collect();
        assert_eq!(
            (&*sections[0].title, &steps[..]),
            ("Some", &[("a b", 2), ("e", 0), ("f", 1)][..])
        );
        let answers: Vec<_> =
            sections[0].steps.iter().map(|it| (it.lines, it.answer.clone())).collect();
        assert_eq!(with_answers(PAGE, &answers), PAGE);
        let answers = [(sections[0].steps[1].lines, lines("new"))];
        assert_eq!(with_answers(PAGE, &answers), PAGE.replace("$ e\n", "$ e\nnew\n"));
        assert!(super::sections("# No command\n").is_err());
        assert!(super::sections("## A\n```console\nno command\n```\n").is_err());
    }

    #[test]
    fn an_answer_is_compared_but_for_what_may_differ() {
        for (expected, said, is) in [
            ("", "", true),
            ("OK", "OK", true),
            ("OK", "OK|more", false),
            ("OK", "", false),
            ("…", "", true),
            ("…", "a|b", true),
            ("…|end", "a|b|end", true),
            ("…|end", "a|b|end|c", false),
            ("…|g0d1 …absent…|…", "g0d0 current|g0d1     absent|records 3", true),
            ("…|g0d1 …absent…|…", "g0d0 absent|g0d1     current|records 3", false),
            ("ready on 127.0.0.1:…", "ready on 127.0.0.1:7000", true),
            ("a…b…c", "a b b c", true),
            ("a…b…c", "a c b", false),
        ] {
            assert_eq!(is_answer(&lines(expected), &lines(said)), is, "{expected}: {said}");
        }
    }
}
