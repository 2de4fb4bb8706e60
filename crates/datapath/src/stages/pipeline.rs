//! The pipeline: the stages of the packet path, declared once, in the order in which frames pass
//! them. The worker and explanations run it; instruction counts and docs/drops.md are made of it.

use crate::engine::{batch::Batch, reason::ReasonInfo};
use crate::stages::{
    antispoof::Antispoof,
    claims::Claims,
    context::Context,
    filter::Filter,
    forward::Forward,
    headers::Headers,
    masquerade::Masquerade,
    offload::Offload,
    route::Route,
    stage::{Stage, StageConfig},
    translate::Translate,
    turn::Cut,
};

/// Looks at a batch behind each stage. `()` does not, and costs nothing.
pub(crate) trait Observer {
    /// Called after the stage with this name has decided.
    fn after(&mut self, stage: &'static str, batch: &mut Batch<'_>, context: &Context<'_>);
}

impl Observer for () {
    #[inline(always)]
    fn after(&mut self, _: &'static str, _: &mut Batch<'_>, _: &Context<'_>) {}
}

/// A stage as lists show it.
pub(crate) struct StageInfo {
    #[cfg_attr(not(feature = "harness"), expect(dead_code, reason = "counts of instructions ask"))]
    pub name: &'static str,
    pub reasons: &'static [ReasonInfo],
}

macro_rules! pipeline {
    ($($(#[$when:meta])? $field:ident: $stage:ty),+ $(,)?) => {
        /// Scratches of all stages.
        pub(crate) struct Scratches {
            $($(#[$when])? pub $field: <$stage as Stage>::Scratch),+
        }

        impl Scratches {
            /// Allocates everything that the stages will ever need.
            pub fn new(config: &StageConfig<'_>) -> Scratches {
                Scratches { $($(#[$when])? $field: <$stage as Stage>::scratch(config)),+ }
            }

            /// Gives all stages other settings.
            pub fn retime(&mut self, config: &StageConfig<'_>) {
                $($(#[$when])? <$stage as Stage>::retime(&mut self.$field, config);)+
            }
        }

        /// Runs all stages over a batch, in order.
        #[inline(always)]
        pub(crate) fn run<O: Observer>(
            batch: &mut Batch<'_>,
            context: &Context<'_>,
            scratches: &mut Scratches,
            observer: &mut O,
        ) {
            $($(#[$when])? {
                <$stage as Stage>::run(batch, context, &mut scratches.$field);
                observer.after(<$stage as Stage>::NAME, batch, context);
            })+
        }

        /// The stages, in order. Delivery ends the way of a batch and is none of them.
        pub(crate) const STAGES: &[StageInfo] = &[
            $($(#[$when])? StageInfo {
                name: <$stage as Stage>::NAME,
                reasons: <$stage as Stage>::REASONS,
            }),+
        ];
    };
}

pipeline! {
    headers: Headers,
    antispoof: Antispoof,
    claims: Claims,
    offload: Offload,
    #[cfg(feature = "every-second")]
    every_second: crate::stages::every_second::EverySecond,
    #[cfg(feature = "every-second")]
    crossover: crate::stages::crossover::Crossover,
    translate: Translate,
    route: Route,
    forward: Forward,
    turn: Cut,
    filter: Filter,
    masquerade: Masquerade,
}
