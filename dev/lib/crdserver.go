// A current API server for custom resources alone: k8s.io/apiextensions-apiserver with an etcd in the
// same process. No authentication, no admission, no core API. dev/crd-server builds and starts it.
//
// It works in the current folder: data, certificates and the socket of etcd go there, and the address
// it got goes to the file "url" once it listens.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	noopoteltrace "go.opentelemetry.io/otel/trace/noop"
	apidiscovery "k8s.io/api/apidiscovery/v2"
	"k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	generatedopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/openapi"
	"k8s.io/apiserver/pkg/util/webhook"
	clientdiscovery "k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/component-base/version"
)

func main() {
	port := flag.Int("port", 0, "port on 127.0.0.1; 0 takes a free one")
	show := flag.Bool("version", false, "print the version of Kubernetes and end")
	flag.Parse()
	if *show {
		fmt.Println(version.Get().GitVersion)
		return
	}
	// Whoever starts this notes its process id first. If it dies before, nothing is left running.
	if line, _ := bufio.NewReader(os.Stdin).ReadString('\n'); line != "go\n" {
		fmt.Fprintln(os.Stderr, "crd-server: waits for the line \"go\" on its input; use dev/crd-server up")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *port); err != nil {
		fmt.Fprintln(os.Stderr, "crd-server:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, port int) error {
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	etcd, err := startEtcd()
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	defer etcd.Close()
	server, err := newServer(listener)
	if err != nil {
		return err
	}
	address := fmt.Sprintf("https://%s\n", listener.Addr())
	if err := os.WriteFile("url.part", []byte(address), 0o600); err != nil {
		return err
	}
	if err := os.Rename("url.part", "url"); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	go func() { cancel(<-etcd.Err()) }()
	return server.GenericAPIServer.PrepareRun().RunWithContext(ctx)
}

// startEtcd runs etcd on Unix sockets, so it needs no ports, and nobody else gets at it.
func startEtcd() (*embed.Etcd, error) {
	config := embed.NewConfig()
	config.Dir = "data"
	config.LogLevel = "warn"
	config.UnsafeNoFsync = true // the data is never used again
	client, peer := url.URL{Scheme: "unix", Host: "etcd.sock:0"}, url.URL{Scheme: "unix", Host: "peer.sock:0"}
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		return nil, err
	}
	select {
	case <-etcd.Server.ReadyNotify():
		return etcd, nil
	case err := <-etcd.Err():
		return nil, err
	case <-time.After(60 * time.Second):
		return nil, errors.New("not ready after 60 s")
	}
}

// newServer does what options.Config does, without the clients of a core API that there is none of.
func newServer(listener net.Listener) (*apiserver.CustomResourceDefinitions, error) {
	o := options.NewCustomResourceDefinitionsServerOptions(os.Stdout, os.Stderr)
	recommended := o.RecommendedOptions
	recommended.Authentication = nil
	recommended.Authorization = nil
	recommended.Admission = nil
	recommended.CoreAPI = nil
	recommended.Features.EnablePriorityAndFairness = false
	recommended.Etcd.StorageConfig.Transport.ServerList = []string{"unix://etcd.sock:0"}
	serving := recommended.SecureServing
	serving.Listener = listener
	serving.BindAddress = net.IPv4(127, 0, 0, 1)
	serving.BindPort = listener.Addr().(*net.TCPAddr).Port
	serving.ServerCert.CertDirectory = "pki"
	if err := o.ServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
		return nil, err
	}
	if err := o.Complete(); err != nil {
		return nil, err
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if err := serving.MaybeDefaultWithSelfSignedCerts(
		"localhost", nil, []net.IP{net.IPv4(127, 0, 0, 1)}); err != nil {
		return nil, err
	}
	generic := genericapiserver.NewRecommendedConfig(apiserver.Codecs)
	if err := o.ServerRunOptions.ApplyTo(&generic.Config); err != nil {
		return nil, err
	}
	if err := recommended.ApplyTo(generic); err != nil {
		return nil, err
	}
	if err := o.APIEnablement.ApplyTo(
		&generic.Config, apiserver.DefaultAPIResourceConfigSource(), apiserver.Scheme); err != nil {
		return nil, err
	}
	definitions := openapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(generatedopenapi.GetOpenAPIDefinitions)
	namer := openapinamer.NewDefinitionNamer(apiserver.Scheme, scheme.Scheme)
	generic.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, namer)
	generic.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
	generic.AggregatedDiscoveryGroupManager = aggregated.NewResourceManager("apis")
	generic.BuildHandlerChainFunc = func(handler http.Handler, c *genericapiserver.Config) http.Handler {
		return discovery(c.AggregatedDiscoveryGroupManager, genericapiserver.DefaultBuildHandlerChain(handler, c))
	}
	config := &apiserver.Config{
		GenericConfig: generic,
		ExtraConfig: apiserver.ExtraConfig{
			CRDRESTOptionsGetter: options.NewCRDRESTOptionsGetter(
				*recommended.Etcd, generic.ResourceTransformers, generic.StorageObjectCountTracker),
			ServiceResolver: noServices{},
			AuthResolverWrapper: webhook.NewDefaultAuthenticationInfoResolverWrapper(
				nil, nil, generic.LoopbackClientConfig, noopoteltrace.NewTracerProvider()),
		},
	}
	return config.Complete().New(genericapiserver.NewEmptyDelegate())
}

// discovery answers what in a whole cluster the aggregator does: /api and /apis, in the aggregated form
// to those who ask for it, and else in the old one. The core API is there and has nothing in it.
func discovery(groups aggregated.ResourceManager, next http.Handler) http.Handler {
	core := aggregated.NewResourceManager("api")
	core.AddGroupVersion("", apidiscovery.APIVersionDiscovery{Version: "v1"})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		wantsAggregated := strings.Contains(r.Header.Get("Accept"), "g=apidiscovery.k8s.io")
		switch path := strings.TrimSuffix(r.URL.Path, "/"); {
		case path == "/apis" && wantsAggregated:
			groups.ServeHTTP(w, r)
		case path == "/apis":
			old, err := oldGroupList(groups)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			answer(w, old)
		case path == "/api" && wantsAggregated:
			core.ServeHTTP(w, r)
		case path == "/api":
			answer(w, metav1.APIVersions{
				TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"},
				ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{}})
		case path == "/api/v1":
			answer(w, metav1.APIResourceList{
				TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
				GroupVersion: "v1", APIResources: []metav1.APIResource{}})
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// oldGroupList makes the old form of /apis from the aggregated one, which is the one kept up to date.
func oldGroupList(groups http.Handler) (*metav1.APIGroupList, error) {
	request := httptest.NewRequest("GET", "/apis", nil)
	request.Header.Set("Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	response := httptest.NewRecorder()
	groups.ServeHTTP(response, request)
	var list apidiscovery.APIGroupDiscoveryList
	if err := json.Unmarshal(response.Body.Bytes(), &list); err != nil {
		return nil, err
	}
	old, _, _ := clientdiscovery.SplitGroupsAndResources(list)
	old.TypeMeta = metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}
	return old, nil
}

func answer(w http.ResponseWriter, content any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(content) // fails when the client has gone
}

// noServices: conversion webhooks work when a CRD names them by URL.
type noServices struct{}

func (noServices) ResolveEndpoint(namespace, name string, _ int32) (*url.URL, error) {
	return nil, fmt.Errorf("no Services here: name the webhook %s/%s by its URL", namespace, name)
}
