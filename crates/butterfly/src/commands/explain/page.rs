//! An explanation for people.

use super::ask;
use crate::commands::drops::remedy;
use crate::text::table::safe;
use butterfly_api::proto::{
    ExplainReq, ExplainRes, ExplainWalk,
    drop_list_res::Place,
    explain_walk::{Drop, Fate, step::Mark},
};
use std::fmt::Write;

/// Returns the answers of the daemon asked, and of the other one.
pub fn page(answers: &[(String, ExplainReq, ExplainRes)]) -> String {
    let mut page = String::new();
    for (endpoint, _, answer) in answers {
        if answers.len() > 1 {
            // Writing to a string cannot fail.
            let _ = match endpoint.as_str() {
                "" => writeln!(page, "On this host"),
                endpoint => writeln!(page, "\nOn the host of {}", safe(endpoint)),
            };
        }
        for (n, way) in answer.walk.iter().enumerate() {
            if n > 0 {
                page.push('\n');
            }
            page.push_str(&walk(way, answer.vni, n > 0));
        }
    }
    if let [(_, question, answer)] = answers
        && let Some(way) = answer.walk.first().filter(|way| !way.host.is_empty())
    {
        let there = way.host.first().map(String::as_str).unwrap_or_default();
        let far = ExplainReq {
            vni: answer.vni,
            from_nic: None,
            source: question.source.clone().or_else(|| Some("SOURCE".into())),
            destination_mac: answer.destination_mac.clone(),
            ..question.clone()
        };
        let far = ask::beyond(&far, answer).unwrap_or(far);
        let _ = writeln!(
            page,
            "\nIt ends on the host with the tunnel endpoint {}. Ask its daemon, or add --far-endpoint:",
            safe(there)
        );
        let _ = writeln!(page, "  {} -e ENDPOINT", safe(&ask::words(&far)));
    }
    page
}

fn fate(way: &ExplainWalk) -> Option<Fate> {
    way.fate.and_then(|fate| fate.enum_value().ok())
}

fn walk(way: &ExplainWalk, vni: Option<u32>, is_answer: bool) -> String {
    let mut page = format!("{}{}\n", if is_answer { "answer: " } else { "" }, safe(way.packet()));
    // The longest name has ten letters, and most walks have none that long.
    let width = way.step.iter().map(|step| step.stage().len()).fold(9, usize::max);
    for step in &way.step {
        let mark = match step.mark.and_then(|mark| mark.enum_value().ok()) {
            Some(Mark::PASS) => "ok",
            Some(Mark::STOP) => "STOP",
            _ => "-",
        };
        let _ = writeln!(page, "  {:<width$} {mark:<5} {}", safe(step.stage()), safe(step.text()));
        for detail in &step.detail {
            let _ = writeln!(page, "  {:<1$} {2}", "", width + 6, safe(detail));
        }
    }
    let listed =
        |items: &[String]| items.iter().map(|item| safe(item)).collect::<Vec<_>>().join(", ");
    let _ = match fate(way) {
        Some(Fate::DELIVERED) => writeln!(page, "delivered to {}", listed(&way.nic_id)),
        Some(Fate::LEAVES) => writeln!(page, "leaves for {}", listed(&way.host)),
        Some(Fate::FLOODED) => {
            let all: Vec<String> = way.nic_id.iter().chain(&way.host).cloned().collect();
            match all.is_empty() {
                true => writeln!(page, "reaches nobody"),
                false => writeln!(page, "goes to {}", listed(&all)),
            }
        }
        Some(Fate::DROPPED) => writeln!(
            page,
            "dropped: {}",
            way.drop.iter().map(dropped).collect::<Vec<_>>().join(", ")
        ),
        // Only DHCP has a step that tells the answer.
        Some(Fate::ANSWERED) if way.step.iter().any(|step| step.stage() == "answer") => {
            writeln!(page, "answered by the network")
        }
        Some(Fate::ANSWERED) => writeln!(page, "answered by the router"),
        Some(Fate::WAITS) => writeln!(page, "waits for an answer of its next hop"),
        Some(Fate::NO_ADDRESS) => writeln!(page, "never sent: its sender gets no link address"),
        None => writeln!(page, "unknown to this client"),
    };
    for drop in way.drop.iter().filter(|drop| !drop.remedy().is_empty()) {
        let place = Place { nic_id: drop.nic_id.clone(), vni, ..Place::default() };
        let _ = writeln!(page, "what to do: {}", safe(&remedy(drop.remedy(), &place)));
    }
    page
}

fn dropped(drop: &Drop) -> String {
    match &drop.nic_id {
        Some(id) => format!("{}, counted at {}", safe(drop.reason()), safe(id)),
        None => format!("{}, counted at the network's other hosts", safe(drop.reason())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfly_api::proto::explain_walk::Step;

    /// Marks, texts and details stand below each other, however long the names of stages are.
    #[test]
    fn steps_are_columns() {
        let step = |stage: &&str| Step {
            stage: Some((*stage).to_owned()),
            mark: Some(Mark::PASS.into()),
            text: Some("text".into()),
            detail: vec!["detail".into()],
            ..Step::default()
        };
        for (stages, marks, texts) in
            [(&["source", "lookup"], 11, 18), (&["source", "masquerade"], 12, 19)]
        {
            let way =
                ExplainWalk { step: stages.iter().map(step).collect(), ..ExplainWalk::default() };
            let page = walk(&way, None, false);
            let steps: Vec<&str> = page.lines().filter(|line| line.starts_with("  ")).collect();
            assert_eq!(steps.len(), 4, "{page}");
            for lines in steps.chunks(2) {
                assert_eq!(
                    [lines[0].find(" ok "), lines[0].find("text")],
                    [Some(marks), Some(texts)],
                    "{page}"
                );
                assert_eq!(lines[1].find("detail"), Some(texts), "{page}");
            }
        }
    }
}
