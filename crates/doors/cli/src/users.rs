//! Names of users, as this machine knows them. Commands look them up and the arbiter never does: a
//! directory service may be slow to answer.

use std::collections::BTreeMap;

use sublet_arbiter::admin::Snapshot;

/// Writes the users' names beside their numbers into what an arbiter shows.
pub(crate) fn name_users(snapshot: &mut Snapshot) {
    let mut known = BTreeMap::new();
    let mut name = |uid: u32| known.entry(uid).or_insert_with(|| name_of(uid)).clone();
    for row in &mut snapshot.users {
        row.user = Some(name(row.uid));
    }
    for job in &mut snapshot.tenants {
        job.user = job.uid.map(&mut name);
    }
}

/// A user's name; the number where there is none, as in a container.
fn name_of(uid: u32) -> String {
    match uzers::get_user_by_uid(uid) {
        Some(user) => user.name().to_string_lossy().into_owned(),
        None => uid.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use sublet_arbiter::admin::{TenantRow, UserRow};

    use super::*;

    #[test]
    fn users_are_shown_by_name_and_by_number_where_they_have_none() {
        const NOBODY_HAS_IT: u32 = 3_999_999_999;
        let row = |uid| UserRow {
            uid,
            ..UserRow::default()
        };
        let job = |uid| TenantRow {
            uid,
            ..TenantRow::default()
        };
        let mut snapshot = Snapshot {
            users: vec![row(0), row(NOBODY_HAS_IT)],
            tenants: vec![job(Some(0)), job(None)],
            ..Snapshot::default()
        };
        name_users(&mut snapshot);
        let users: Vec<_> = snapshot.users.into_iter().map(|row| row.user).collect();
        assert_eq!(
            users,
            [Some("root".to_owned()), Some(NOBODY_HAS_IT.to_string())]
        );
        let jobs: Vec<_> = snapshot.tenants.into_iter().map(|job| job.user).collect();
        assert_eq!(jobs, [Some("root".to_owned()), None]);
    }
}
