"""Names that a module imports though its band has not got them (`test_bands`). The list shrinks, and never grows."""

from __future__ import annotations

NOT_YET: dict[str, str] = {
    "__main__": "make_command",
    "agents.agent_check": "FinderNode Repair SENT build_finder facts_around giving into_problems set_apart",
    "agents.arrivals": "Inbox LivePosts SENT",
    "agents.conversation": (
        "ARGS COVERS CUTS FORCED HANDOFFS MESSAGES PROBLEMS TURN check_chat places_of_results text_by_name without_none"
    ),
    "agents.loop": "compiled literals members",
    "agents.mode": (
        "Filler fill_text is_template names_in set_steps_apart step_count warning_message warning_of with_valid_text"
    ),
    "agents.settle": "value_in",
    "agents.tool_action": (
        "BoundNode SubgraphNode messages_in plan_inputs program_step selected values_of_prediction with_valid_text"
    ),
    "agents.tool_node": (
        "NodeModules OfGraph RESERVED_KEYS asks_module build_finder found_problems giving modules_text permitted "
        "problem_texts refusal_text reject_steps source_class step_count steps_since to_json values_of"
    ),
    "agents.tools": (
        "OfGraph check_name class_of compiled is_value_class node_options own_call shown_type signature_of "
        "signature_of_module"
    ),
    "archive.archive": ("CheckedStore HistoryReader Opaque check_thread_name due_threads is_encrypted json waiting_at"),
    "archive.archived_thread": (
        "Bounds FollowedRecords HistoryReader ReadsHistory ThreadReader cancellation_count drawn_graph "
        "failures_of_run first_version is_alive recover_state run_in_thread run_of unread_of"
    ),
    "archive.run_info": "EndRow HistoryReader current_status encode failures_of_run read_run sum_usage waiting_at",
    "cli.programs": "decode_update encode",
    "cli.store_access": "CheckedStore SQLITE UnreadablePatch changed encode_update export is_encrypted json load",
    "display": "lazy_names",
    "display.graph_svg": "Edge Rounds",
    "display.progress": "at_fork watching",
    "display.report": "ROLES",
    "display.stats": "sum_usage",
    "executors.call": (
        "CallOptions Executing Inside KeptPrediction LMRecorder Outcome Request RunLink Spends append_to_trace "
        "current_gate end_of executing executing_id find_resource id_prefix layers_around may_raise "
        "parameter_names prices_here result_of subscriber subscribers task_signal walk_parameters"
    ),
    "executors.pickling": "HOLDING RECORDS REJECTED reduce_program rejected_copy",
    "executors.task": (
        "CallOptions DaemonLoop Executing Inside LMRetryNotes PRICES Prices REQUEST Request Steps call_async "
        "executing record_lm_calls subscribing with_own_adapters"
    ),
    "inspector.acting": "PRICES decode_update json named_classes",
    "inspector.reading": "RecordWriter",
    "lms.gate": "OVER at_fork clock current_gate current_limit end_of is_on_loop",
    "lms.reliable_lm": "FALLBACK clock estimate_tokens responses_asked retry_after token_counts",
    "migrate.channels": "CopyOnRead RecentFindings SCALARS classes_in is_rebuildable mentions message_list",
    "migrate.code_reading": "attributes_of code_objects own_call used_objects",
    "migrate.conversion": "NEEDED check_flags refusal_text set_held_classes topology",
    "migrate.converted_node": (
        "Goto RecordKey SENT accepts attribute_problems check_name find_resource refusal_text value_of_run"
    ),
    "migrate.graph_edges": "used_objects",
    "migrate.internals": "attributes_of validated_fields",
    "migrate.langgraph_report": "attributes_of",
    "migrate.unsupported": "RESERVED",
    "optimize.examples": "check_inputs",
    "optimize.gold_layer": (
        "Steps apart_from_earlier append_to_trace execute_attempt layers_around step_count take_steps"
    ),
    "optimize.gold_run": "original_id",
    "runtime.drivers": "tracing",
    "search.search_graph": "is_record is_value_class name_map named_classes",
    "search.trial": (
        "Item MISSING MapOptions Within build_module each_update fits function_finder in_rollout resets results_of "
        "shown_type step_count take_steps"
    ),
    "serve.agui_events": "Redactor Session THOUGHT last_of_refusal last_of_run redacted",
    "serve.agui_messages": "SUBMIT TURN",
    "serve.agui_route": "HEARTBEAT stop_waiting without_none",
    "testing.fake_clock": "Clock Kind current set_clock",
    "testing.store_conformance": "Content blob_id json",
    "testing.store_processes": "blob_id",
    "testing.store_samples": "Content MAX_INLINE",
    "testing.units": (
        "Answers Attempt AttemptHost Branch Fields PersistentMap PriorHistory Router RunViews answer_source "
        "build_node check_resources check_send condensed executing_here first_of given giving node_options "
        "plain_patch resources_of signature_of"
    ),
    "tracing": "clock",
    "tracing.metrics": "Subscriber subscribing",
    "tracing.spans": "FIRST StoredTrace redacted subscribing",
}
