/* The functions of this folder that rpc calls through tether__ext_ops (rpc/refs.h). */
#ifndef TETHER_RREF_HOOKS_H
#define TETHER_RREF_HOOKS_H

#include "rref/context.h"

struct tether__arrival;
struct tether__ref_message;
struct tether__ref_pack;
struct tether__resume;

/* ---- encode.c ---- */
tether_status tether__refs_encode_locked(void *ext,
                                         struct tether__peer *peer,
                                         const tether_value *value,
                                         bool may_be_overtaken,
                                         struct tether__ref_pack *ret_pack,
                                         tether_error *reterr);
void tether__refs_encode_end_locked(void *ext,
                                    struct tether__peer *peer,
                                    struct tether__ref_pack *pack,
                                    bool queued);
tether_status tether__refs_check(void *ext,
                                 const tether_value *value,
                                 bool sending,
                                 tether_error *reterr);

/* ---- decode.c ---- */
enum tether__outcome tether__refs_arrived(void *ext,
                                          struct tether__ref_message *message,
                                          tether_error *reterr);
enum tether__outcome tether__refs_confirm(struct tether__arrival *arrival,
                                          struct tether__resume *resume,
                                          tether_error *reterr);

/* ---- owned.c ---- */
void tether__refs_remote_done(void *result,
                              tether_status status,
                              const char *error,
                              tether_value *value);
void tether__refs_result_type(void *result, const char *type);
/* ---- protocol.c ---- */
enum tether__outcome tether__refs_frame(void *ext,
                                        struct tether__peer *peer,
                                        uint64_t session_number,
                                        const struct tether__inbound *message,
                                        size_t unread);
enum tether__outcome tether__refs_find_target(void *ext,
                                              struct tether__peer *peer,
                                              uint64_t session_number,
                                              const Tether__RefId *target,
                                              uint64_t owner_incarnation,
                                              int64_t deadline,
                                              struct tether__resume *resume,
                                              tether_value **ret_object,
                                              tether_error *reterr);

/* ---- session.c ---- */
void tether__refs_session_ended(void *ext,
                                struct tether__peer *peer,
                                uint64_t session_number,
                                struct tether__outbox_items *untold,
                                const tether_error *why);
bool tether__refs_forget(void *ext, struct tether__peer *peer);

/* ---- waiting.c ---- */
int64_t tether__refs_tick(void *ext, int64_t now);

/* ---- drain.c ---- */
tether_status tether__refs_drain(void *ext, int64_t deadline, tether_error *reterr);

#endif
