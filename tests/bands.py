"""Names that a module imports though its band has not got them (`test_bands`). The list shrinks, and never grows."""

from __future__ import annotations

NOT_YET: dict[str, str] = {
    "__main__": "make_command",
    "agents.agent_check": (
        "Built CheckedCommit FinderNode Flaws FrozenList KindOptions LogEntry ModuleStep NodeOptions PROBLEMS "
        "Repair Schema TURN apply_value build_finder facts_around filled giving into_problems plan_templates "
        "set_apart text_of"
    ),
    "agents.conversation": (
        "ARGS Binding CUSTOM_TYPE_END_IDENTIFIER CUSTOM_TYPE_START_IDENTIFIER EMPTY Flaws FrozenDict FrozenList "
        "NOTHING NodeOptions TURN check_chat edited_text indented is_async label plan_binding read_signature "
        "text_of without_none"
    ),
    "agents.loop": "PROBLEMS compiled flag_problems is_program is_whole_number literals members read_signature",
    "agents.mode": (
        "Built FORCED Filler Flaws FrozenList KindOptions ModuleStep NodeOptions TRACE TURN call_ids fill_text "
        "filled is_template names_in plan_templates set_steps_apart step_count turns_of_task warning_message "
        "warning_of with_valid_text"
    ),
    "agents.settle": (
        "ARGS Binding Built Flaws FrozenList KindOptions NodeOptions RequestedCall is_async is_manual last_turn "
        "plan_binding read_signature same task_message text_of tool_message unanswered_calls value_in"
    ),
    "agents.tool_action": (
        "Binding FieldNames Flaws FrozenDict FrozenList FunctionStep InsideRun ModuleIO ModuleStep NOTHING "
        "NO_TEMPLATES NodeOptions ProgramStep SubgraphNode Templates Updates arun_script check_names filled "
        "last_turn plan_inputs run_script selected serialize_for_json to_json values_of values_of_prediction "
        "with_valid_text"
    ),
    "agents.tool_node": (
        "Binding Built FieldNames Flaws FunctionSignature KindOptions NOTHING NodeModules NodeOptions OfGraph "
        "PROBLEMS RESERVED_KEYS Schema asks_module build_finder check_names found_problems giving hidden_problems "
        "is_async is_program module_io modules_text permitted plan_binding plan_templates problem_texts "
        "read_signature refusal_text reject_steps source_class step_count steps_since tool_message"
    ),
    "agents.tools": (
        "FunctionSignature OfGraph Parameter Schema check_name class_of flag_problems is_async is_program "
        "is_value_class module_io node_options own_call read_signature shown_type signature_of "
        "signature_of_module"
    ),
    "archive.archive": (
        "CheckedStore HistoryReader ListedRun Opaque RunPlace RunQuery Schema Store check_thread_name json"
    ),
    "archive.archived_thread": (
        "Bounds GraphPicture HistoryReader ImmutableState ListedRun Moment Point Record RunPath Stats "
        "ThreadReader cancellation_count count_stats describe_run draw_svg drawn_graph first_version is_alive "
        "json record_of run_in_thread run_of write_page"
    ),
    "archive.opening": "CheckedStore Encrypted RunQuery Store open_store",
    "archive.run_info": (
        "COMMITS CommitRow EndRow HistoryReader ListedRun OpenRow Point RowKind START Store current_status encode "
        "failures_in full_id is_readable questions_at read_run rows_through run_label sum_usage"
    ),
    "archive.stored_graph": "GraphDrawing GraphPicture draw_mermaid draw_svg drawing_of",
    "cli.commands": "Thread",
    "cli.programs": "Archive Budget CompiledGraph Graph Run RunInfo Store Thread decode_update encode freeze progress",
    "cli.store_access": (
        "Address Archive ArchivedThread CheckedStore Encrypted ImmutableState RunQuery SQLITE Store "
        "UnreadablePatch commit_answer encode_update execution_answer export full_id is_encrypted load open_store "
        "stops_of"
    ),
    "cli.summaries": "cost_text count_of duration_text path_text",
    "display.cut_values": "TAG",
    "display.graph_picture": "DrawnGraph END Edge START Schema Topology",
    "display.progress": "Address at_fork watching whole_execution",
    "display.progress_screen": "path_text",
    "display.report": "DELETE ROLES Replace path_text thaw",
    "display.run_page": "ImmutableState changed encode_update freeze json outermost_execution",
    "display.stats": "sum_usage",
    "display.tokens": "label",
    "executors.call": (
        "ATTRIBUTE CallOptions DEFAULT_CONFIG Executing FAILED_RUNS HISTORY_OFF HISTORY_SIZE Inside "
        "KeptPrediction LMRecorder Outcome Request RunLink SEND_STREAM Spends TRACE_SIZE TRACKER append_to_trace "
        "current_gate end_of executing executing_id find_resource id_prefix layers_around may_raise "
        "parameter_names prices_here rejected_copy result_of subscriber subscribers task_signal walk_parameters"
    ),
    "executors.pickling": "HOLDING RECORDS reduce_program",
    "executors.task": (
        "CallOptions DaemonLoop Executing FAILED_RUNS Inside LMRetryNotes Outcome PRICES Prices REJECTED REQUEST "
        "Request Steps TRACE TRACKER UsageTracker executing record_lm_calls result_of subscribing "
        "with_own_adapters"
    ),
    "graph.spec": "GraphDrawing GraphPicture draw_graph draw_mermaid draw_svg",
    "inspector": "Archive CompiledGraph Store",
    "inspector.acting": "CompiledGraph Events Store Thread decode_update freeze json named_classes",
    "inspector.reading": (
        "Address Archive ArchivedThread RECORD commit_answer commit_row conflicts_of cut_within execution_answer "
        "full_id part_of posts_of run_answer steps_of stops_of"
    ),
    "inspector.web_app": "Archive PAGE",
    "lms.gate": "OVER at_fork clock current_gate current_limit end_of is_on_loop",
    "lms.reliable_lm": (
        "CLIENT_KEYS ENGINES FALLBACK LM_CLASS_STATE_KEY Request TRACKER _adapter_call _cached "
        "adapter_fallback_scope adapter_message_call arun_script clock estimate_tokens is_number is_whole_number "
        "prepare responses_asked retry_after run_script token_counts"
    ),
    "migrate.channels": "CopyOnRead FrozenList SCALARS Updates classes_in is_rebuildable mentions message_list",
    "migrate.code_reading": "attributes_of code_objects own_call used_objects",
    "migrate.conversion": "NEEDED check_flags refusal_text set_held_classes topology",
    "migrate.converted_node": (
        "Goto RecordKey SENT Schema accepts attribute_problems check_name find_resource refusal_text value_of_run"
    ),
    "migrate.graph_edges": "used_objects",
    "migrate.internals": "attributes_of validated_fields",
    "migrate.langgraph_report": "attributes_of table_lines",
    "migrate.unsupported": "RESERVED",
    "optimize.few_shot": (
        "Attempt Hasher INPUT_KEYS LogEntry REQUEST Request Session SessionEnd Steps apart_from_earlier "
        "append_to_trace check_inputs execute_attempt internals_of outermost_execution recording step_count "
        "take_run take_steps"
    ),
    "optimize.field_metric": "GraphSpec internals_of outermost_execution same",
    "optimize.gepa": "FailedPrediction gepa_compile internals_of same",
    "optimize.gepa_adapter": (
        "CALLERS Executing FAILED_RUNS STRIDE Subscriber TappedCall modules_in outermost_execution subscribing "
        "walk walk_parameters"
    ),
    "optimize.gepa_stats": "count_of table_html table_lines",
    "optimize.run_judge": "GraphSpec Router internals_of is_apart path_in_program",
    "optimize.written_values": (
        "FinderNode FrozenDict GraphSpec LogEntry ModuleRouter Router internals_of is_async is_manual merge_base "
        "read_signature resets sent_to"
    ),
    "runtime.drivers": "OPENTELEMETRY UNTRACED continued_trace span_layers",
    "search.search_graph": (
        "NodeOptions Schema apply_value as_float is_number is_program is_record is_value_class is_whole_number "
        "module_io modules_in name_map named_classes read_signature"
    ),
    "search.trial": (
        "Built Flaws FrozenDict FrozenList Gather KindOptions LogEntry MISSING MapOptions NodeOptions Schema "
        "Within apply_value as_float build_module build_subgraph each_update execute_item fits function_finder "
        "hidden_problems in_rollout is_program item_script module_io part_id part_script plan_binding publish_end "
        "publish_start read_signature recorded resets shown_type step_count take_steps without_class"
    ),
    "serve": "CompiledGraph",
    "serve.agui_events": (
        "FrozenList GraphSpec ImmutableState Redactor Run START Session THOUGHT call_text is_within "
        "last_of_refusal last_of_run redacted thaw whole_execution"
    ),
    "serve.agui_messages": "SUBMIT TURN",
    "serve.agui_route": "AsyncEvents CompiledGraph GraphSpec HEARTBEAT Thread stop_waiting without_none",
    "testing": "FakeClock",
    "testing.prompt": (
        "Message Request Response StreamDeltaEvent StreamEndEvent StreamStartEvent TextDelta TextPart "
        "ToolCallDelta ToolCallPart Usage"
    ),
    "testing.scripted": "BaseCallback",
    "testing.store_conformance": "Change Content Point Row RunRow Snapshot Store blob_id json same",
    "testing.store_lists": "Change ListedRun Point Row RunPlace RunQuery RunRow Store",
    "testing.store_processes": "Change Point Snapshot Store blob_id",
    "testing.store_samples": (
        "Change Content DeletionReport MAX_INLINE NO_EPOCHS Owner Point Row RunRow Store ThreadRow"
    ),
    "testing.units": (
        "Answers Attempt AttemptHost Branch Built FakeClock Fields FieldsOrigin GraphSpec PersistentMap "
        "PriorHistory Router RunViews Schema answer_source build_node check_resources check_send condensed "
        "executing_here fake_clock first_of given giving node_options plain_patch resources_of run_script "
        "signature_of"
    ),
    "tracing.spans": "FIRST GraphSpec Redacted RunState StoredTrace path_text redacted whole_execution",
}
