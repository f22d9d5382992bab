//! What must hold after every step, and what must hold at rest.

use core::time::Duration;

use hugepool_engine::{ClientState, Command, OperationState, PageCounts, Reply};

use crate::model::Broken;
use crate::world::World;

impl World {
    /// The equations and the sums, after every step.
    ///
    /// # Errors
    /// Pages are lost, doubled or nobody's.
    pub fn check_conservation(&mut self) -> Result<(), Broken> {
        self.follow_moves()?;
        self.engine.verify_contiguity()?;
        let pages = self.engine.status().pages;
        if !pages.adds_up() {
            return Err(format!("the equations do not add up: {pages:?}"));
        }
        self.check_nodes(pages)?;
        let present = self.model.nr_present() * self.section_pages();
        if pages.present != present {
            return Err(format!("{present} pages should be present: {pages:?}"));
        }
        let mut owned_by_all = 0;
        for tenant in &mut self.tenants {
            let Some(owned) = self.engine.owned_pages(tenant.id) else {
                return Err(format!("client {} is forgotten while it lives", tenant.id));
            };
            owned_by_all += owned;
            let ceiling = self.engine.ceiling_pages(tenant.id).unwrap_or(u64::MAX);
            if owned > tenant.last_owned && owned > ceiling {
                return Err(format!(
                    "{} was lent {owned} pages over {ceiling}",
                    tenant.id
                ));
            }
            tenant.last_owned = owned;
            let known = tenant.nr_held() + tenant.nr_pending();
            if tenant.is_honest && owned < known {
                return Err(format!(
                    "client {} has {known} pages in hand or promised, the daemon knows {owned}",
                    tenant.id
                ));
            }
        }
        if pages.lent != owned_by_all + self.pages_on_their_way() {
            return Err(format!(
                "{} pages are lent, clients own {owned_by_all}",
                pages.lent
            ));
        }
        Ok(())
    }

    /// Each NUMA node's equations, which add up to the whole; and who was served from another node
    /// than it wanted is counted at both.
    fn check_nodes(&self, pages: PageCounts) -> Result<(), Broken> {
        let nodes = self.engine.list_nodes();
        let mut sum = PageCounts::default();
        for node in &nodes {
            if !node.pages.adds_up() {
                return Err(format!("the equations of a node do not add up: {node:?}"));
            }
            sum += node.pages;
        }
        let missed: u64 = nodes.iter().map(|node| node.miss_pages).sum();
        let foreign: u64 = nodes.iter().map(|node| node.foreign_pages).sum();
        if sum != pages || missed != foreign {
            return Err(format!("the nodes are not the whole, {pages:?}: {nodes:?}"));
        }
        Ok(())
    }

    /// The whole structure.
    ///
    /// # Errors
    /// The first thing that does not hold.
    pub fn check_structure(&self) -> Result<(), Broken> {
        let report = self.engine.verify();
        if let Some(finding) = report.findings.first() {
            return Err(format!(
                "verify: {} findings, the first: {finding}",
                report.nr_findings
            ));
        }
        for client in self.engine.list_clients(self.now) {
            let tenant = self
                .tenant_of(client.client)
                .and_then(|at| self.tenants.get(at));
            let Some(tenant) = tenant else {
                return Err(format!("client {} is there after its death", client.client));
            };
            let is_blamed =
                client.nr_misuses != tenant.nr_probes || client.state == ClientState::Poisoned;
            if tenant.is_honest && is_blamed {
                return Err(format!(
                    "honest client {} is blamed: {:?} {:?}",
                    tenant.id, client.state, client.last_misuse
                ));
            }
        }
        Ok(())
    }

    /// With all lanes emptied, an honest client owns exactly what it has in hand or was promised.
    ///
    /// # Errors
    /// It does not.
    pub fn check_at_rest(&mut self) -> Result<(), Broken> {
        self.finish_moves()?;
        let timeout = Some(Duration::from_millis(10));
        let command = Command::DrainLanes {
            slot: None,
            timeout,
        };
        let reply = self.engine.apply(command, self.now, &mut self.outside);
        let Ok(Reply::Operation(begun)) = reply else {
            // As many operations as may run are running; another time.
            return Ok(());
        };
        let mut state = begun.state;
        for _ in 0..5 {
            if state != OperationState::Running {
                break;
            }
            self.now += Duration::from_millis(10);
            self.engine.poll(self.now, &mut self.outside);
            let command = Command::GetOperation { id: begun.id };
            if let Ok(Reply::Operation(report)) =
                self.engine.apply(command, self.now, &mut self.outside)
            {
                state = report.state;
            }
        }
        // The runner is not let on with moves here: clients act in the midst of its work.
        self.collect_effects()?;
        self.follow_moves()?;
        if state == OperationState::Running {
            return Err(format!("drain {} does not end", begun.id));
        }
        for tenant in self.tenants.iter().filter(|tenant| tenant.is_honest) {
            let owned = self.engine.owned_pages(tenant.id).unwrap_or(0);
            let known = tenant.nr_held() + tenant.nr_pending();
            if tenant.stopped.is_empty() && owned != known {
                return Err(format!(
                    "at rest, client {} owns {owned} pages and knows of {known}",
                    tenant.id
                ));
            }
        }
        Ok(())
    }

    /// Everybody dies, every operation ends: all pages are home.
    ///
    /// # Errors
    /// They are not.
    pub fn check_end(&mut self) -> Result<(), Broken> {
        while !self.tenants.is_empty() {
            self.die(0)?;
        }
        for _ in 0..1000 {
            self.finish_moves()?;
            while !self.effects.is_empty() {
                self.answer_effect(0, true)?;
                self.collect_effects()?;
            }
            self.now += Duration::from_millis(50);
            self.engine.poll(self.now, &mut self.outside);
            if self.engine.status().nr_operations == 0 {
                break;
            }
        }
        self.check_conservation()?;
        self.check_structure()?;
        let status = self.engine.status();
        if status.pages.lent != 0 || status.nr_operations != 0 || self.model.nr_held() != 0 {
            return Err(format!("not all is home at the end: {status:?}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_falls_back_to_another_node_and_both_count_it() {
        for seed in 0..200 {
            let mut world = World::new(seed, false).unwrap();
            for step in 0..500 {
                world.step(step).unwrap();
                world.check_conservation().unwrap();
            }
            let nodes = world.engine.list_nodes();
            let fell_back = |of: fn(&hugepool_engine::NodeReport) -> u64| {
                nodes.iter().any(|node| node.node >= 0 && of(node) > 0)
            };
            if nodes.len() > 1 && fell_back(|node| node.miss_pages) {
                assert!(fell_back(|node| node.hit_pages));
                return;
            }
        }
        panic!("nothing ever came from another node");
    }
}
