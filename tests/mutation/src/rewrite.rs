//! Writes a source file with a switch around each of its drawn points.
//!
//! Only one switch is on in a run, so the replacement in a switch needs no switches of its own.

use std::ops::Range;

use crate::points::{Point, Shape};

/// A rewritten file with the position of each switch.
pub struct Rewritten {
    pub text: String,
    /// Numbers of mutants with their positions in `text`, in bytes.
    pub switches: Vec<(u32, Range<usize>)>,
}

/// Puts switches around points. The points are in the order of [`crate::points::points`].
pub fn rewrite(source: &str, points: &[(u32, &Point)]) -> Rewritten {
    let mut writer = Writer {
        source,
        points,
        next: 0,
        skip: constants(points),
        switches: Vec::new(),
        text: String::new(),
    };
    writer.copy(0..source.len());
    Rewritten { text: writer.text, switches: writer.switches }
}

/// The `const ` of functions that get a switch.
fn constants(points: &[(u32, &Point)]) -> Vec<Range<usize>> {
    let mut constants: Vec<Range<usize>> =
        points.iter().filter_map(|(_, point)| point.constant.clone()).collect();
    constants.sort_by_key(|range| range.start);
    constants.dedup();
    constants
}

struct Writer<'a> {
    source: &'a str,
    points: &'a [(u32, &'a Point)],
    next: usize,
    skip: Vec<Range<usize>>,
    switches: Vec<(u32, Range<usize>)>,
    text: String,
}

impl Writer<'_> {
    /// Copies a range of the source, with switches around the points in it.
    fn copy(&mut self, range: Range<usize>) {
        let mut at = range.start;
        while let Some((number, point)) = self.points.get(self.next) {
            if point.range.start < at || point.range.end > range.end {
                break;
            }
            self.next += 1;
            self.plain(at..point.range.start);
            at = point.range.end;
            let begin = self.text.len();
            match point.shape {
                Shape::Expression => {
                    let replacement = &point.replacement;
                    self.text.push_str(&format!(
                        "(if crate::mutant::mutant({number}) {{ {replacement} }} else {{ "
                    ));
                    self.copy(point.range.clone());
                    self.text.push_str(" })");
                }
                Shape::Statement => {
                    self.text.push_str(&format!("if !crate::mutant::mutant({number}) {{ "));
                    self.copy(point.range.clone());
                    self.text.push_str(" }");
                }
            }
            self.switches.push((*number, begin..self.text.len()));
        }
        self.plain(at..range.end);
    }

    fn plain(&mut self, range: Range<usize>) {
        let mut at = range.start;
        for skipped in self
            .skip
            .iter()
            .filter(|skipped| range.start <= skipped.start && skipped.end <= range.end)
        {
            self.text.push_str(&self.source[at..skipped.start]);
            at = skipped.end;
        }
        self.text.push_str(&self.source[at..range.end]);
    }
}

/// The module that tells rewritten files which mutant is on.
pub const MODULE: &str = include_str!("../switch.rs");

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use super::*;
    use crate::points::points;

    const SOURCE: &str = "
        const LIMIT: u32 = 5;
        const fn below(a: u32) -> bool { a < LIMIT }
        fn sum(values: &[u32]) -> u32 {
            let mut sum = 0;
            for value in values { if !below(*value) { continue; } sum += value; }
            sum
        }
        fn main() { println!(\"{} {}\", below(5), sum(&[1, 2, 7])); }";

    /// Compiles all switches into one program, as for the packet path. Each mutant then behaves in
    /// its own way.
    #[test]
    fn each_mutant_is_a_program_of_its_own() {
        let points = points(SOURCE).unwrap();
        let numbered: Vec<(u32, &Point)> = (1..).zip(&points).collect();
        let rewritten = rewrite(SOURCE, &numbered);
        let home = tempfile::tempdir().unwrap();
        let (file, program) = (home.path().join("main.rs"), home.path().join("main"));
        fs::write(home.path().join("mutant.rs"), MODULE).unwrap();
        fs::write(&file, format!("mod mutant;\n{}", rewritten.text)).unwrap();
        let built = Command::new("rustc")
            .arg("-Awarnings")
            .arg("-o")
            .arg(&program)
            .arg(&file)
            .status()
            .unwrap();
        assert!(built.success(), "{}", rewritten.text);
        let says = |number: u32| {
            let output = Command::new(&program).env("MUTANT", number.to_string()).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(says(0), "false 3\n");
        let of = |operator: &str| {
            numbered.iter().find(|(_, point)| point.operator == operator).unwrap().0
        };
        assert_eq!(says(of("move a boundary")), "true 3\n");
        assert_eq!(says(of("change a constant")), "true 10\n");
        assert_eq!(says(of("drop a negation")), "false 7\n");
        // The loop is the first statement that can be left out.
        assert_eq!(says(of("remove a statement")), "false 0\n");
    }
}
