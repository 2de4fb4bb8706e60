//! Finds the places of a source file where a small mistake can be made.
//!
//! A point is a range of the file and the text that a mistaken author would have written there.
//! Tests, constants' definitions, types, patterns and macros have no points.

use std::ops::Range;

use anyhow::{Context as _, Result};
use proc_macro2::Span;
use syn::{
    Attribute, BinOp, Block, Expr, ExprBinary, ExprLit, ExprMethodCall, ExprStruct, Lit, Member,
    Stmt, UnOp,
    spanned::Spanned as _,
    visit::{self, Visit},
};

use crate::words::{exchanged, opposite};

/// Kind of code at a point, which decides how a switch is put around it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// An expression, replaced by another one of its type.
    Expression,
    /// A statement, left out.
    Statement,
}

/// A place where a mistake can be made.
#[derive(Clone, Debug)]
pub struct Point {
    /// Kind of mistake.
    pub operator: &'static str,
    pub shape: Shape,
    /// Position in the file, in bytes.
    pub range: Range<usize>,
    pub replacement: String,
    /// The function that contains the point.
    pub function: String,
    /// The `const ` of that function, which is removed when the function gets a switch.
    pub constant: Option<Range<usize>>,
    pub line: usize,
}

/// Returns the points of a source file in the order of their beginnings.
pub fn points(source: &str) -> Result<Vec<Point>> {
    let file = syn::parse_file(source).context("the file is not Rust that syn knows")?;
    let mut finder = Finder { source, points: Vec::new(), functions: Vec::new() };
    finder.visit_file(&file);
    let mut points = finder.points;
    // Outer points first: the switch of a statement contains the switches inside it.
    points.sort_by_key(|point| {
        (point.range.start, std::cmp::Reverse(point.range.end), point.shape == Shape::Expression)
    });
    Ok(points)
}

struct Finder<'a> {
    source: &'a str,
    points: Vec<Point>,
    functions: Vec<(String, Option<Range<usize>>)>,
}

impl Finder<'_> {
    fn text(&self, span: Span) -> &str {
        &self.source[span.byte_range()]
    }

    fn add(&mut self, operator: &'static str, shape: Shape, span: Span, replacement: String) {
        let Some((function, constant)) = self.functions.last().cloned() else { return };
        let line = span.start().line;
        self.points.push(Point {
            operator,
            shape,
            range: span.byte_range(),
            replacement,
            function,
            constant,
            line,
        });
    }

    fn change(&mut self, operator: &'static str, span: Span, replacement: String) {
        self.add(operator, Shape::Expression, span, replacement);
    }

    fn enter(&mut self, signature: &syn::Signature) {
        let constant = signature.constness.as_ref().map(|token| {
            let range = token.span.byte_range();
            range.start..range.end + 1
        });
        self.functions.push((signature.ident.to_string(), constant));
    }

    fn condition(&mut self, condition: &Expr) {
        if !holds_let(condition) {
            let negated = format!("!({})", self.text(condition.span()));
            self.change("negate a condition", condition.span(), negated);
        }
    }

    /// Adds a point for an operand that is read, if its name is one of a pair: the other one would
    /// have the same type.
    fn operand(&mut self, operand: &Expr) {
        let name = match operand {
            Expr::Field(field) => match &field.member {
                Member::Named(name) => name,
                Member::Unnamed(_) => return,
            },
            Expr::Path(path) => match path.path.get_ident() {
                Some(name) => name,
                None => return,
            },
            _ => return,
        };
        if let Some(other) = opposite(&name.to_string()) {
            let start = operand.span().byte_range().start;
            let replacement =
                format!("{}{other}", &self.source[start..name.span().byte_range().start]);
            self.change("swap a pair", operand.span(), replacement);
        }
    }

    fn arguments<'e>(&mut self, whole: Span, arguments: impl Iterator<Item = &'e Expr>) {
        let arguments: Vec<&Expr> = arguments.collect();
        for argument in &arguments {
            self.operand(argument);
        }
        for pair in arguments.windows(2) {
            let [first, second] = pair else { continue };
            let (a, b) = (self.text(first.span()), self.text(second.span()));
            if exchanged(a).as_deref() == Some(b) {
                let (start, end) = (whole.byte_range().start, whole.byte_range().end);
                let (first, second) = (first.span().byte_range(), second.span().byte_range());
                let between = &self.source[first.end..second.start];
                let text = format!(
                    "{}{b}{between}{a}{}",
                    &self.source[start..first.start],
                    &self.source[second.end..end]
                );
                self.change("swap arguments", whole, text);
            }
        }
    }

    fn statement(&mut self, statement: &Stmt) {
        let removable = match statement {
            Stmt::Expr(expression, Some(_)) => match expression {
                Expr::Binary(binary) => assigns(&binary.op),
                Expr::Assign(_) | Expr::Call(_) | Expr::MethodCall(_) | Expr::Try(_) => true,
                Expr::Return(_) | Expr::Continue(_) | Expr::Break(_) => true,
                _ => false,
            },
            Stmt::Expr(Expr::If(conditional), None) => conditional.else_branch.is_none(),
            Stmt::Expr(Expr::ForLoop(each), None) => each.label.is_none(),
            _ => false,
        };
        if removable {
            self.add("remove a statement", Shape::Statement, statement.span(), String::new());
        }
    }
}

/// Returns true if these attributes limit an item to tests.
fn for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::Path(path) => path.is_ident("test"),
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            condition.contains("test") || condition.contains("loom")
        }
        _ => false,
    })
}

fn holds_let(condition: &Expr) -> bool {
    match condition {
        Expr::Let(_) => true,
        Expr::Binary(binary) => chains_let(binary),
        _ => false,
    }
}

fn chains_let(binary: &ExprBinary) -> bool {
    matches!(binary.op, BinOp::And(_)) && (holds_let(&binary.left) || holds_let(&binary.right))
}

fn assigns(operator: &BinOp) -> bool {
    use BinOp::*;
    matches!(
        operator,
        AddAssign(_)
            | SubAssign(_)
            | MulAssign(_)
            | DivAssign(_)
            | RemAssign(_)
            | BitXorAssign(_)
            | BitAndAssign(_)
            | BitOrAssign(_)
            | ShlAssign(_)
            | ShrAssign(_)
    )
}

/// Returns the operators that an author could have written by mistake, with the kind of mistake.
fn other_operators(operator: &BinOp) -> &'static [(&'static str, &'static str)] {
    use BinOp::*;
    const BOUNDARY: &str = "move a boundary";
    const COMPARE: &str = "swap a comparison";
    const ARITHMETIC: &str = "swap arithmetic";
    match operator {
        Lt(_) => &[(BOUNDARY, "<="), (COMPARE, ">")],
        Le(_) => &[(BOUNDARY, "<"), (COMPARE, ">=")],
        Gt(_) => &[(BOUNDARY, ">="), (COMPARE, "<")],
        Ge(_) => &[(BOUNDARY, ">"), (COMPARE, "<=")],
        Eq(_) => &[(COMPARE, "!=")],
        Ne(_) => &[(COMPARE, "==")],
        And(_) => &[("swap and, or", "||")],
        Or(_) => &[("swap and, or", "&&")],
        Add(_) => &[(ARITHMETIC, "-")],
        Sub(_) => &[(ARITHMETIC, "+")],
        Mul(_) => &[(ARITHMETIC, "/")],
        Div(_) => &[(ARITHMETIC, "*")],
        Rem(_) => &[(ARITHMETIC, "/")],
        Shl(_) => &[(ARITHMETIC, ">>")],
        Shr(_) => &[(ARITHMETIC, "<<")],
        BitAnd(_) => &[(ARITHMETIC, "|")],
        BitOr(_) => &[(ARITHMETIC, "&")],
        BitXor(_) => &[(ARITHMETIC, "|")],
        AddAssign(_) => &[(ARITHMETIC, "-=")],
        SubAssign(_) => &[(ARITHMETIC, "+=")],
        BitAndAssign(_) => &[(ARITHMETIC, "|=")],
        BitOrAssign(_) => &[(ARITHMETIC, "&=")],
        BitXorAssign(_) => &[(ARITHMETIC, "|=")],
        _ => &[],
    }
}

fn is_constant(path: &syn::Path) -> bool {
    path.segments.last().is_some_and(|last| {
        let name = last.ident.to_string();
        name.len() > 1
            && name.starts_with(|first: char| first.is_ascii_uppercase())
            && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
    })
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if !for_tests(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !for_tests(&item.attrs) {
            self.enter(&item.sig);
            self.visit_block(&item.block);
            self.functions.pop();
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !for_tests(&item.attrs) {
            self.enter(&item.sig);
            self.visit_block(&item.block);
            self.functions.pop();
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.enter(&item.sig);
            self.visit_block(block);
            self.functions.pop();
        }
    }

    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_item_enum(&mut self, _: &'ast syn::ItemEnum) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_type(&mut self, _: &'ast syn::Type) {}
    fn visit_generic_argument(&mut self, _: &'ast syn::GenericArgument) {}
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}
    fn visit_attribute(&mut self, _: &'ast Attribute) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}

    fn visit_block(&mut self, block: &'ast Block) {
        for statement in &block.stmts {
            self.statement(statement);
        }
        visit::visit_block(self, block);
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if let Some(initial) = &local.init {
            self.visit_expr(&initial.expr);
            if let Some((_, other)) = &initial.diverge {
                self.visit_expr(other);
            }
        }
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if let Some((_, guard)) = &arm.guard {
            self.condition(guard);
            self.visit_expr(guard);
        }
        self.visit_expr(&arm.body);
    }

    fn visit_expr_if(&mut self, conditional: &'ast syn::ExprIf) {
        self.condition(&conditional.cond);
        visit::visit_expr_if(self, conditional);
    }

    fn visit_expr_while(&mut self, repeated: &'ast syn::ExprWhile) {
        self.condition(&repeated.cond);
        visit::visit_expr_while(self, repeated);
    }

    fn visit_expr_repeat(&mut self, repeated: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeated.expr);
    }

    fn visit_expr_macro(&mut self, call: &'ast syn::ExprMacro) {
        if call.mac.path.is_ident("matches") {
            let negated = format!("!{}", self.text(call.span()));
            self.change("negate a condition", call.span(), negated);
        }
    }

    fn visit_expr_binary(&mut self, binary: &'ast ExprBinary) {
        if !chains_let(binary) {
            let (left, right) = (self.text(binary.left.span()), self.text(binary.right.span()));
            let texts = other_operators(&binary.op).iter().map(|(operator, text)| {
                match assigns(&binary.op) {
                    true => (*operator, format!("{left} {text} {right}")),
                    false => (*operator, format!("({left}) {text} ({right})")),
                }
            });
            for (operator, text) in texts.collect::<Vec<_>>() {
                self.change(operator, binary.span(), text);
            }
            if !assigns(&binary.op) {
                self.operand(&binary.left);
            }
            self.operand(&binary.right);
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'ast syn::ExprUnary) {
        if matches!(unary.op, UnOp::Not(_)) {
            let bare = self.text(unary.expr.span()).to_owned();
            self.change("drop a negation", unary.span(), bare);
        }
        visit::visit_expr_unary(self, unary);
    }

    fn visit_expr_lit(&mut self, literal: &'ast ExprLit) {
        match &literal.lit {
            Lit::Int(number) => {
                if let Ok(value) = number.base10_parse::<u128>() {
                    let text = format!("{}{}", value + 1, number.suffix());
                    self.change("change a number", literal.span(), text);
                }
            }
            Lit::Bool(value) => {
                let text = if value.value { "false" } else { "true" };
                self.change("change a truth", literal.span(), text.to_owned());
            }
            _ => {}
        }
    }

    fn visit_expr_path(&mut self, path: &'ast syn::ExprPath) {
        if is_constant(&path.path) {
            let changed = format!("crate::mutant::Changed::changed({})", self.text(path.span()));
            self.change("change a constant", path.span(), changed);
        }
    }

    fn visit_expr_reference(&mut self, reference: &'ast syn::ExprReference) {
        if reference.mutability.is_none() {
            self.operand(&reference.expr);
        }
        visit::visit_expr_reference(self, reference);
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        self.arguments(call.span(), call.args.iter());
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_tuple(&mut self, tuple: &'ast syn::ExprTuple) {
        self.arguments(tuple.span(), tuple.elems.iter());
        visit::visit_expr_tuple(self, tuple);
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        self.arguments(call.span(), call.args.iter());
        if let Some(other) = opposite(&call.method.to_string()) {
            let (whole, name) = (call.span().byte_range(), call.method.span().byte_range());
            let (before, behind) =
                (&self.source[whole.start..name.start], &self.source[name.end..whole.end]);
            let text = format!("{before}{other}{behind}");
            self.change("swap a pair", call.span(), text);
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_struct(&mut self, literal: &'ast ExprStruct) {
        for field in &literal.fields {
            if field.colon_token.is_some() {
                self.operand(&field.expr);
                self.visit_expr(&field.expr);
            }
        }
        if let Some(rest) = &literal.rest {
            self.visit_expr(rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str) -> Vec<(&'static str, String, String)> {
        let points = points(source).unwrap();
        points
            .into_iter()
            .map(|p| (p.operator, source[p.range].to_owned(), p.replacement))
            .collect()
    }

    #[test]
    fn comparisons_get_both_mistakes() {
        let found = found("fn f(a: u8, b: u8) -> bool { a < b }");
        assert_eq!(
            found,
            [
                ("move a boundary", "a < b".into(), "(a) <= (b)".into()),
                ("swap a comparison", "a < b".into(), "(a) > (b)".into()),
            ]
        );
    }

    #[test]
    fn tests_types_patterns_and_definitions_have_no_points() {
        let source = "const A: u8 = 1 + 2;\n#[cfg(test)] mod tests { fn f() -> u8 { 1 } }\n#[test] fn g() { h(1); }\n\
                      fn k(x: [u8; 4]) -> u8 { match x { [1, ..] => x.len() as u8, _ => x[x.len()] } }";
        assert_eq!(found(source), []);
    }

    #[test]
    fn statements_and_early_returns_go() {
        let found = found("fn f(a: bool) { if a { return; } g(); }");
        let removed = found.iter().filter(|(operator, ..)| *operator == "remove a statement");
        let texts: Vec<&str> = removed.map(|(_, text, _)| text.as_str()).collect();
        assert_eq!(texts, ["if a { return; }", "return;", "g();"]);
    }

    #[test]
    fn pairs_are_swapped_by_themselves_and_as_arguments() {
        let found = found("fn f(p: P) { g(p.source_port, p.destination_port); }");
        let changes: Vec<&str> = found.iter().map(|(_, _, text)| text.as_str()).collect();
        assert!(changes.contains(&"p.destination_port") && changes.contains(&"p.source_port"));
        assert!(changes.contains(&"g(p.destination_port, p.source_port)"));
    }

    #[test]
    fn a_chain_with_let_is_not_negated_as_a_whole() {
        let found = found(
            "fn f(a: bool, b: Option<u8>) -> bool { if a && let Some(_) = b { g() } else { h() } }",
        );
        assert_eq!(found, []);
    }
}
