//! Tests of the node and card that a claim gets, and of the reasons for a refusal: pictures for
//! [`super`]. Tests in which pods reserve twice or wait belong to the engine.

use crate::script::check;

#[test]
fn r1_3_one_card_must_have_room() {
    check(
        "n1: 16276/16276 16276/16276
         n2: 12207/16276 12207/16276
         ask p 8138
         -> n1: GPU 0 lacks 8138 MiB: 8138 MiB asked, and the largest hole on this node is 0 MiB
         -> n2: GPU 0 lacks 4069 MiB: 8138 MiB asked, and the largest hole on this node is 4069 MiB
         wire p 8138
         -> no GPU has 8138 MiB free
         n3: 8138/16276 16276/16276
         ask p 8138
         -> n3/0",
    );
}

#[test]
fn r1_4_least_free_card_that_fits() {
    check(
        "n1: 4069/16276 8138/16276 12207/16276 0/16276
         reserve p n1 8138
         -> n1/1
         reserve q n1 8138
         -> n1/0
         reserve r n1 8138
         -> n1/3
         reserve s n1 8138
         -> n1/3
         reserve t n1 8138
         -> no: GPU 0 lacks 4069 MiB: 8138 MiB asked, and the largest hole on this node is 4069 MiB
         show
         -> n1: 12207/16276 16276/16276 12207/16276 16276/16276",
    );
}

#[test]
fn r1_10_more_than_any_card_is_never() {
    check(
        "n1: 0/16276 0/81559
         n2:
         ask p 81560
         -> n1: 81560 MiB asked of one GPU, but the largest, GPU 1, has 81559 MiB in all (1 MiB too few) (never)
         -> n2: the node has no GPU (never)
         ask p 3x
         -> n1: 3 GPUs asked, but the node has 2 GPUs (never)
         -> n2: the node has no GPU (never)",
    );
}

#[test]
fn cards_of_mixed_sizes_on_one_node() {
    check(
        "n1: 0/81559 0/16276 0/24564
         reserve a n1 16276
         -> n1/1
         reserve b n1 16277
         -> n1/2
         reserve c n1 16276
         -> n1/0
         reserve d n1 1x
         -> no: 1 GPU asked, but 0 of 3 GPUs idle
         show
         -> n1: 16276/81559 16276/16276 16277/24564",
    );
}

#[test]
fn binpack_over_nodes_takes_the_tightest_card_then_the_fullest_node() {
    check(
        "a: 0/16 0/16
         b: 8/16 0/16
         c: 8/16 4/16
         filter p 8
         -> c b a
         filter q 2x
         -> a",
    );
}

#[test]
fn spread_takes_the_least_used_node_then_the_emptiest_card() {
    check(
        "options policy=spread
         a: 8/16 0/16
         b: 4/16 0/16
         c: 0/16 4/16 0/16 4/16
         filter p 4
         -> c b a
         ask q 4
         -> c/0",
    );
    // The shares are equal, so the larger hole decides, not the name.
    check(
        "options policy=spread
         a: 4/16 4/16
         b: 8/16 0/16
         filter p 4
         -> b a",
    );
}

#[test]
fn whole_cards() {
    check(
        "n1: 4/16 0/16 0/16! 0/16 0/16
         reserve p n1 2x
         -> n1/1,3
         reserve q n1 2x
         -> no: 2 GPUs asked, but 1 of 5 GPUs idle; 1 GPU is unhealthy (xid 79)
         reserve r n1 13
         -> n1/4
         reserve s n1 13
         -> no: GPU 0 lacks 1 MiB: 13 MiB asked, and the largest hole on this node is 12 MiB; 1 GPU is unhealthy (xid 79)
         show
         -> n1: 4/16 16/16w 0/16! 16/16w 13/16",
    );
}

#[test]
fn containers_of_a_pod_share_cards_as_kubernetes_counts_them() {
    check(
        "n1: 0/16 0/16 0/16 0/16
         reserve p n1 i3x+1x+1x
         -> n1/0,1,2+0+1
         forget p
         reserve q n1 s1x+i2x+1x
         -> n1/0+1,2+1
         forget q
         reserve r n1 i16+s2+i8+4+4
         -> n1/0+0+0+0+0
         show
         -> n1: 16/16 0/16 0/16 0/16
         forget r
         reserve t n1 s2+i8+4+1
         -> n1/0+0+0+0
         show
         -> n1: 10/16 0/16 0/16 0/16",
    );
}

#[test]
fn look_alikes_wait_where_the_agent_knows_sizes_only() {
    check(
        "n1 size: 0/16 0/16
         reserve a n1 4
         -> n1/0
         ask a 4
         -> n1/0
         ask b 4
         -> n1: pod default/a asks for the same amount and has not started yet; the node tells pods apart by size
         wire b 4
         -> a pod that looks the same is still starting on the node
         reserve c n1 5
         -> n1/0
         reserve d n1 1+5
         -> no: pod default/c asks for the same amount and has not started yet; the node tells pods apart by size
         assign a
         ask b 4
         -> n1/0",
    );
    check(
        "n1: 0/16
         reserve a n1 4
         -> n1/0
         reserve b n1 4
         -> n1/0",
    );
    check(
        "n1 size slots: 0/16
         reserve a n1 4:slot
         -> n1/0
         reserve b n1 5:slot
         -> no: pod default/a asks for the same amount and has not started yet; the node tells pods apart by size
         release a
         reserve b n1 5:slot
         -> n1/0",
    );
}

#[test]
fn twins_wait_together_where_the_agent_learns_afterwards_whom_it_served() {
    check(
        "n1 checkpoint: 0/16 0/16
         reserve a n1 4
         -> n1/0
         reserve b n1 4
         -> n1/0
         reserve c n1 4
         -> n1/0
         reserve d n1 5
         -> n1/1
         reserve e n1 4
         -> n1/0
         reserve f n1 4
         -> no: pod default/a asks for the same amount and has not started yet; the node tells pods apart by size
         assign a
         assign b
         assign c
         assign e
         reserve f n1 4
         -> n1/1",
    );
    // Of two containers, or of whole cards, kubelet asks more than once, or about other cards.
    check(
        "n1 checkpoint: 0/16 0/16
         reserve a n1 4+4
         -> n1/0+0
         reserve b n1 4+4
         -> no: pod default/a asks for the same amount and has not started yet; the node tells pods apart by size
         reserve c n1 4
         -> no: pod default/a asks for the same amount and has not started yet; the node tells pods apart by size",
    );
}

#[test]
fn whole_cards_in_use_somewhere_are_kept_out_of_reach() {
    // Without an agent kubelet keeps whole cards apart, but nobody keeps parts away from them.
    check(
        "n1: 0/16 0/16 4/16
         observe x n1 1x ?
         show
         -> n1: 0/16 0/16 4/16 and 1 somewhere
         reserve p n1 2x
         -> no: 2 GPUs asked, but 1 of 3 GPUs idle
         reserve q n1 8
         -> no: GPU 0 lacks 8 MiB: 8 MiB asked, and the largest hole on this node is 0 MiB; 16 MiB more are kept for pods that do not say which GPU they have
         filter q 8
         ->
         reserve t n1 1x
         -> n1/0
         forget x
         reserve r n1 8
         -> n1/2
         reserve s n1 1x
         -> n1/1",
    );
    // With an agent, exactly the cards that we name are handed over.
    check(
        "n1 size: 0/16 0/16
         observe x n1 1x ?
         show
         -> n1: 0/16?16 0/16?16
         reserve p n1 1x
         -> no: 1 GPU asked, but 0 of 2 GPUs idle; 2 GPUs may be in use by pods that do not say which they have
         forget x
         reserve p n1 1x
         -> n1/0",
    );
}

#[test]
fn a_part_in_use_somewhere_is_kept_free_on_every_card() {
    check(
        "n1: 0/16
         n2: 0/16 4/16 0/24
         n3: 0/16 0/16
         observe a n1 4 ?
         observe b n2 6 ?
         observe c n2 6 ?
         observe d n3 i20+3 ?
         show
         -> n1: 4/16
         -> n2: 0/16?12 4/16?12 0/24?12
         -> n3: 0/16?20 0/16?20
         reserve p n2 5
         -> n2/2
         reserve q n2 8
         -> no: GPU 2 lacks 1 MiB: 8 MiB asked, and the largest hole on this node is 7 MiB; 12 MiB more are kept for pods that do not say which GPU they have
         reserve q n2 1x
         -> no: 1 GPU asked, but 0 of 3 GPUs idle; 1 GPU may be in use by pods that do not say which they have
         reserve r n3 1
         -> no: GPU 0 lacks 1 MiB: 1 MiB asked, and the largest hole on this node is 0 MiB; 20 MiB more are kept for pods that do not say which GPU they have
         forget d
         reserve r n3 1
         -> n3/0
         forget b
         reserve q n2 8
         -> n2/0",
    );
}

#[test]
fn nodes_that_serve_another_kind_of_claim() {
    check(
        "n1 memory: 0/16
         n2 whole: 0/16
         n3 gib: 0/16
         n4 slots: 0/16
         ask p 17
         -> n1: 17 MiB asked of one GPU, but the largest, GPU 0, has 16 MiB in all (1 MiB too few) (never)
         -> n2: the node hands out whole GPUs only; its label sublet.dev/sharing=both, or agent.sharing of the chart, has it hand out parts too (never)
         -> n3: the node counts GPU memory in GiB, the scheduler in MiB: give both the same --memory-unit (never)
         -> n4: the node hands out what the pod asks for by slots, and the pod does not ask for sublet.dev/gpu-slot: 1 (never)
         filter q 8
         -> n1
         filter r 8:slot
         -> n1 n4
         filter s 1x
         -> n2 n3 n4",
    );
}

#[test]
fn sick_cards_take_nothing_new_and_stay_charged() {
    check(
        "n1: 4/16! 0/16!
         ask p 8
         -> n1: GPU 0 lacks 8 MiB: 8 MiB asked, and the largest hole on this node is 0 MiB; 2 GPUs are unhealthy (the first: xid 79)
         ask p 0
         -> n1: GPU 0 lacks 0 MiB: 0 MiB asked, and the largest hole on this node is 0 MiB; 2 GPUs are unhealthy (the first: xid 79)
         n1: 4/16 0/16!
         ask p 8
         -> n1/0",
    );
}

#[test]
fn compute_time_of_a_card_is_promised_once() {
    check(
        "n1: 0/16 0/16
         reserve a n1 4@600
         -> n1/0
         reserve b n1 4@500
         -> n1/1
         reserve c n1 4@500
         -> n1/1
         reserve d n1 1@401
         -> no: GPU 0 lacks 0.1 % of its compute time: 40.1 % asked, and 40 % is the most that is left of a GPU with enough memory
         wire d 1@401
         -> no GPU has 1 MiB and 40.1 % of compute time free
         reserve d n1 1
         -> n1/1
         show
         -> n1: 4@600/16 9@1000/16",
    );
}

#[test]
fn a_guaranteed_pod_of_all_compute_time_is_alone_in_its_class() {
    check(
        "n1: 0/16
         reserve a n1 4@1000
         -> n1/0
         reserve b n1 4
         -> no: GPU 0 has room, but a guaranteed pod that asks for all of a GPU's compute time shares it with no other guaranteed pod
         forget a
         reserve b n1 4
         -> n1/0
         reserve a n1 4@1000
         -> no: GPU 0 has room, but a guaranteed pod that asks for all of a GPU's compute time shares it with no other guaranteed pod",
    );
}

#[test]
fn parts_of_several_cards_are_on_different_cards() {
    check(
        "n1: 8/16 0/16 12/16 0/16
         reserve a n1 4*2
         -> n1/2,0
         reserve b n1 8@300*2+4
         -> n1/1,3+1
         show
         -> n1: 12/16 12@300/16 16/16 8@300/16
         ask c 8*2
         -> n1: 2 GPUs with 8 MiB of each asked, but 1 of them can be had
         wire c 8*2
         -> fewer than 2 GPUs have 8 MiB free
         ask c 4*5
         -> n1: 5 GPUs asked, but the node has 4 GPUs (never)
         ask c 5*3+4@800*2
         -> n1: 3 GPUs with 9 MiB and 80 % of compute time of each asked, but 1 of them can be had",
    );
}

#[test]
fn a_share_is_of_the_card_that_is_looked_at() {
    check(
        "n1: 10000/16276 0/81559
         ask p 50%
         -> n1/1
         reserve p n1 50%
         -> n1/1
         reserve q n1 30%
         -> n1/0
         reserve r n1 50%@300
         -> n1/1
         reserve s n1 10%
         -> no: GPU 0 lacks 233 MiB: 1627 MiB asked, and the largest hole on this node is 1394 MiB
         show
         -> n1: 14882/16276 81558@300/81559",
    );
}

#[test]
fn a_share_that_fits_nowhere_says_what_it_lacks() {
    check(
        "n1: 8139/16276 40781/81559
         wire p 50%
         -> no GPU has 50 % of its memory free
         ask q 50%
         -> n1: GPU 1 lacks 1 MiB: 40779 MiB asked, and the largest hole on this node is 40778 MiB",
    );
}

#[test]
fn a_pod_goes_only_on_cards_that_it_accepts() {
    check(
        "n1: 0/100@GPU-a@Tesla-V100@0 0/100@GPU-b@NVIDIA-A100@0 0/100@GPU-c@NVIDIA-A100@1
         ask p 50:on=a100
         -> n1/1
         ask q 50:on=GPU-c
         -> n1/2
         ask r 50:on=a100,!GPU-b
         -> n1/2
         ask t 3x:on=!v100
         -> n1: 3 GPUs asked, but the node has 2 GPUs that the pod accepts together (never)
         ask u 50:on=h100
         -> n1: the pod accepts only GPUs of model `h100`; the node has `Tesla-V100` and `NVIDIA-A100` (never)
         wire u 50:on=h100
         -> the pod accepts only GPUs of model `h100`
         ask v 101:on=v100
         -> n1: 101 MiB asked of one GPU, but the largest, GPU 0, has 100 MiB in all (1 MiB too few) (never)
         reserve s n1 2x:on=!v100
         -> n1/1,2
         ask w 50:on=a100
         -> n1: GPU 1 lacks 50 MiB: 50 MiB asked, and the largest hole on this node is 0 MiB",
    );
}

#[test]
fn h9_numa_bound_cards_are_of_one_numa_node() {
    check(
        "n1: 0/100@GPU-a@A100@1 0/100@GPU-b@A100@1 0/100@GPU-c@A100@0
         reserve p n1 10*2:on=numa
         -> n1/0,1
         reserve q n1 2x:on=numa
         -> no: 2 GPUs asked, but 0 of 2 GPUs idle
         reserve r n1 1x:on=numa
         -> n1/2
         n2: 0/100@GPU-d@A100
         ask s 10:on=numa,GPU-d
         -> n1: the pod accepts only GPUs with UUID `GPU-d`, of one NUMA node; the node has none of these (never)
         -> n2: the pod accepts only GPUs with UUID `GPU-d`, of one NUMA node; the node does not say of which NUMA node its GPUs are (never)",
    );
}

#[test]
fn containers_that_choose_for_themselves_may_share_a_card_or_not() {
    check(
        "n1: 0/8000 0/8000
         reserve p n1 own:3000+5000
         -> n1/0+0
         reserve q n1 own:5000+4000
         -> no: 2 containers of the pod ask for GPUs each for itself, and only the first 1 of them can have theirs
         n2: 0/8000 0/8000
         reserve q n2 own:5000+4000
         -> n2/0+1
         reserve r n1 own:9000+1
         -> no: 9000 MiB asked of one GPU, but the largest, GPU 0, has 8000 MiB in all (1000 MiB too few)
         n3: 2000/8000 0/8000
         reserve s n3 own:i7000+2000*2+1000
         -> n3/1+1,0+1
         reserve t n3 own:100*3+100
         -> no: 3 GPUs asked, but the node has 2 GPUs
         show
         -> n1: 8000/8000 0/8000
         -> n2: 5000/8000 4000/8000
         -> n3: 4000/8000 7000/8000",
    );
}

#[test]
fn containers_that_choose_for_themselves_make_room_for_each_other() {
    check(
        "n1: 3000/8000 0/8000
         reserve p n1 own:4000+8000
         -> n1/0+1
         n2: 3000/8000 0/8000
         reserve q n2 own:4000+5000+3000
         -> n2/0+1+1
         n3: 4000/8000 0/9000
         reserve r n3 own:4000+2000+7000
         -> n3/0+1+1
         n4: 4000/8000 0/9000
         reserve s n4 own:2000+4000+7000
         -> n4/1+0+1",
    );
}
