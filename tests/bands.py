"""Names that a module imports though its band has not got them (`test_bands`). The list shrinks, and never grows."""

from __future__ import annotations

NOT_YET: dict[str, str] = {
    "__main__": "make_command",
    "agents.agent_check": (
        "Built FinderNode Flaws FrozenList KindOptions LogEntry ModuleStep NodeOptions PROBLEMS Repair Schema TURN "
        "apply_value build_finder facts_around filled giving into_problems plan_templates set_apart text_of"
    ),
    "agents.conversation": (
        "ARGS Binding EMPTY Flaws FrozenDict FrozenList NOTHING NodeOptions TURN check_chat edited_text indented "
        "is_async label plan_binding read_signature text_of without_none"
    ),
    "agents.loop": "PROBLEMS compiled flag_problems is_program is_whole_number literals members read_signature",
    "agents.mode": (
        "Built FORCED Filler Flaws FrozenList KindOptions ModuleStep NodeOptions TURN call_ids fill_text filled "
        "is_template names_in plan_templates set_steps_apart step_count turns_of_task warning_message warning_of "
        "with_valid_text"
    ),
    "agents.settle": (
        "ARGS Binding Built Flaws FrozenList KindOptions NodeOptions RequestedCall is_async is_manual last_turn "
        "plan_binding read_signature same task_message text_of tool_message unanswered_calls value_in"
    ),
    "agents.tool_action": (
        "Binding FieldNames Flaws FrozenDict FrozenList FunctionStep InsideRun ModuleIO ModuleStep NOTHING "
        "NO_TEMPLATES NodeOptions ProgramStep SubgraphNode Templates arun_script check_names filled last_turn "
        "plan_inputs run_script selected to_json values_of values_of_prediction with_valid_text"
    ),
    "agents.tool_node": (
        "Binding Built FieldNames Flaws FunctionSignature KindOptions NOTHING NodeModules NodeOptions OfGraph "
        "PROBLEMS RESERVED_KEYS Schema asks_module build_finder check_names found_problems giving hidden_problems "
        "is_async is_program module_io modules_text permitted plan_binding plan_templates problem_texts "
        "read_signature refusal_text reject_steps source_class step_count steps_since tool_message"
    ),
    "agents.tools": (
        "FunctionSignature OfGraph Parameter Schema check_name class_of flag_problems is_async is_program "
        "is_value_class module_io node_options own_call read_signature shown_type signature_of signature_of_module"
    ),
    "archive.archive": "CheckedStore HistoryReader Opaque Schema check_thread_name json",
    "archive.archived_thread": (
        "Bounds FollowedRecords GraphPicture HistoryReader Moment RunPath ThreadReader cancellation_count "
        "count_stats describe_run draw_svg drawn_graph first_version is_alive run_in_thread run_of write_page"
    ),
    "archive.opening": "CheckedStore",
    "archive.run_info": (
        "EndRow HistoryReader OpenRow RowKind current_status encode failures_in full_id questions_at read_run "
        "rows_through run_label sum_usage"
    ),
    "archive.stored_graph": "GraphDrawing GraphPicture draw_mermaid draw_svg drawing_of",
    "cli.programs": "decode_update encode progress",
    "cli.store_access": (
        "Address CheckedStore SQLITE UnreadablePatch commit_answer encode_update execution_answer export full_id "
        "is_encrypted load stops_of"
    ),
    "cli.summaries": "cost_text count_of duration_text path_text",
    "display.cut_values": "TAG",
    "display.graph_picture": "Edge Schema Topology",
    "display.progress": "Address at_fork watching whole_execution",
    "display.progress_screen": "path_text",
    "display.report": "ROLES path_text",
    "display.run_page": "changed encode_update json outermost_execution",
    "display.stats": "sum_usage",
    "display.tokens": "label",
    "executors.call": (
        "ATTRIBUTE CallOptions Executing FAILED_RUNS Inside KeptPrediction LMRecorder Outcome Request RunLink "
        "Spends append_to_trace current_gate end_of executing executing_id find_resource id_prefix layers_around "
        "may_raise parameter_names prices_here rejected_copy result_of subscriber subscribers task_signal "
        "walk_parameters"
    ),
    "executors.pickling": "HOLDING RECORDS reduce_program",
    "executors.task": (
        "CallOptions DaemonLoop Executing FAILED_RUNS Inside LMRetryNotes Outcome PRICES Prices REJECTED REQUEST "
        "Request Steps executing record_lm_calls result_of subscribing with_own_adapters"
    ),
    "graph.spec": "GraphDrawing GraphPicture draw_graph draw_mermaid draw_svg",
    "inspector.acting": "decode_update json named_classes",
    "inspector.reading": (
        "Address RECORD commit_answer commit_row conflicts_of cut_within execution_answer full_id part_of posts_of "
        "run_answer steps_of stops_of"
    ),
    "inspector.web_app": "PAGE",
    "lms.gate": "OVER at_fork clock current_gate current_limit end_of is_on_loop",
    "lms.reliable_lm": (
        "FALLBACK arun_script clock estimate_tokens is_number is_whole_number responses_asked retry_after "
        "run_script token_counts"
    ),
    "migrate.channels": (
        "CopyOnRead FrozenList RecentFindings SCALARS classes_in is_rebuildable mentions message_list"
    ),
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
        "Attempt LogEntry REQUEST Request Session SessionEnd Steps apart_from_earlier append_to_trace check_inputs "
        "execute_attempt internals_of outermost_execution recording step_count take_run take_steps"
    ),
    "optimize.field_metric": "internals_of outermost_execution same",
    "optimize.gepa": "internals_of same",
    "optimize.gepa_adapter": (
        "Executing FAILED_RUNS STRIDE Subscriber TappedCall modules_in outermost_execution subscribing walk "
        "walk_parameters"
    ),
    "optimize.gepa_stats": "count_of table_html table_lines",
    "optimize.run_judge": "Router internals_of is_apart path_in_program",
    "optimize.written_values": (
        "FinderNode FrozenDict LogEntry ModuleRouter Router internals_of is_async is_manual merge_base "
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
    "serve.agui_events": (
        "FrozenList Redactor Session THOUGHT call_text is_within last_of_refusal last_of_run redacted whole_execution"
    ),
    "serve.agui_messages": "SUBMIT TURN",
    "serve.agui_route": "HEARTBEAT stop_waiting without_none",
    "testing.fake_clock": "Clock Kind current set_clock",
    "testing.store_conformance": "Content blob_id json same",
    "testing.store_processes": "blob_id",
    "testing.store_samples": "Content MAX_INLINE",
    "testing.units": (
        "Answers Attempt AttemptHost Branch Built Fields FieldsOrigin PersistentMap PriorHistory Router "
        "RunViews Schema answer_source build_node check_resources check_send condensed executing_here "
        "first_of given giving node_options plain_patch resources_of run_script signature_of"
    ),
    "tracing.spans": "FIRST Redacted RunState StoredTrace path_text redacted whole_execution",
}
